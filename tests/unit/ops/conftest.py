import pytest
import torch

from chord_jit import knobs


@pytest.fixture
def reference_backend():
    """Calls over CPU tensors are computed by the references."""
    with knobs.scope(CHORD_BACKEND="reference"):
        yield


@pytest.fixture
def fresh_compiler():
    """No compiled code of another test, before or after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
