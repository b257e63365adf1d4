"""GPU tests: skipped where there is no GPU, quick ones first, kernels compiled at once beforehand.

A kernel is known beforehand if a selected test takes its ``Case`` as a parameter, or if the test's module names it in
``KERNELS``: a list of (case, dequantisation or None). Any other one is compiled when its test asks for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chord_jit import device, knobs, warm_up
from chord_jit.jit.launch import Launch
from tests.gpu.cases import Case
from tests.gpu.workload import problem_of

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
    ours.sort(key=lambda item: item.get_closest_marker("quick") is None)
    items[:] = [item for item in items if HERE not in item.path.parents] + ours


@pytest.fixture(scope="session")
def gpu(request) -> torch.device:
    """The device under test, with the kernels that are known beforehand loaded."""
    if not device.present():
        pytest.skip("needs a CUDA device")
    here, wanted = torch.device("cuda", torch.cuda.current_device()), {}
    for item in request.session.items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        wanted.update(dict.fromkeys((value, None) for value in parameters if isinstance(value, Case)))
        wanted.update(dict.fromkeys(getattr(item.module, "KERNELS", ())))
    problems = []
    for case, dequant in wanted:
        with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
            problems.append(problem_of(case, here))
    report = warm_up(problems)
    assert not report.failed, str(report)
    return here


@pytest.fixture
def no_launch(monkeypatch):
    """A launch fails the test instead of running: an illegal one would break the context for every test behind it."""

    def refuse(launch, *values):
        pytest.fail("launched")

    monkeypatch.setattr(Launch, "__call__", refuse)


@pytest.fixture(autouse=True)
def finished(request):
    """An asynchronous error belongs to the test that caused it."""
    yield
    if "gpu" in request.fixturenames and device.present():
        torch.cuda.synchronize()
