"""What every test gets: seeds made of its own node id, and a cache and a lock folder that are nobody else's."""

from __future__ import annotations

import os
import random
from hashlib import sha256

import numpy
import pytest
import torch
from hypothesis import HealthCheck, settings

from chord_jit import knobs

# The machines that run this are slow and shared: a slow example is no failure.
settings.register_profile("chord", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chord")


@pytest.fixture(scope="session", autouse=True)
def private_roots(tmp_path_factory):
    """No test reads or writes the user's cubin cache or waits for the user's compile locks, in child processes neither."""
    folder = tmp_path_factory.mktemp("chord")
    kept = {name: os.environ.get(name) for name in os.environ if name.startswith("CHORD_")}
    for name in kept:
        del os.environ[name]
    os.environ["CHORD_CACHE_DIR"] = str(folder / "cache")
    os.environ["CHORD_LOCK_DIR"] = str(folder / "locks")
    knobs.refresh()
    yield folder
    del os.environ["CHORD_CACHE_DIR"], os.environ["CHORD_LOCK_DIR"]
    os.environ.update(kept)
    knobs.refresh()


@pytest.fixture
def seed(request) -> int:
    """A seed that belongs to this test and its parameters: equal in every run, different in every case."""
    return int.from_bytes(sha256(request.node.nodeid.encode()).digest()[:4], "little")


@pytest.fixture(autouse=True)
def seeded(seed):
    """The global generators start from the test's own seed, so that no test depends on which one ran before it."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


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
