"""GPU tests: skipped where there is no GPU, quick ones first, kernels compiled at once beforehand and loaded where first called.

Workers of pytest-xdist share one cache and the work: each compiles its part of the kernels, and finds or awaits the others'.

A kernel is known beforehand if a selected test takes its ``Case`` or ``GroupedCase`` as a parameter, or a tuple of one and how
it is computed, or if the test's module names it in ``KERNELS``, a list of such tuples. How: a schedule, a dequantisation, or None
for what the resolver takes. Any other kernel is compiled when its test asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chord_jit import device, knobs
from chord_jit.families.base import family
from chord_jit.jit.launch import Launch
from chord_jit.jit.warmup import warm_up
from chord_jit.schedules.schedule import Schedule
from tests.gpu import grouped_workload, workload
from tests.gpu.cases import Case
from tests.gpu.grouped_cases import GroupedCase

HERE = Path(__file__).parent
PROBLEM_OF = {Case: workload.problem_of, GroupedCase: grouped_workload.problem_of}
OUTSIDE = ("open", "os.", "shutil.", "subprocess.", "import", "ctypes.dlopen", "socket.", "tempfile.")
_heard: list[str] | None = None


def pytest_collection_modifyitems(items):
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
    ours.sort(key=lambda item: item.get_closest_marker("quick") is None)
    items[:] = [item for item in items if HERE not in item.path.parents] + ours


@pytest.fixture(scope="session")
def gpu(request, tmp_path_factory) -> Iterator[torch.device]:
    """The device under test, with the kernels that are known beforehand compiled."""
    if not device.present():
        pytest.skip("needs a CUDA device")
    here = torch.device("cuda", torch.cuda.current_device())
    worker, workers, shared = 0, 1, {}
    if hasattr(request.config, "workerinput"):
        worker, workers = int(request.config.workerinput["workerid"].removeprefix("gw")), request.config.workerinput["workercount"]
        folder = tmp_path_factory.getbasetemp().parent / "chord"  # a worker's own folders lie side by side
        shared = dict(CHORD_CACHE_DIR=str(folder / "cache"), CHORD_LOCK_DIR=str(folder / "locks"))
    wanted = [choice(case, how, here) for case, how in known_beforehand(request.session.items)]
    specs = list(dict.fromkeys(family(problem.family).spec(problem, schedule) for problem, schedule in wanted))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shared.items():
            patch.setenv(name, value)  # for child processes too
        knobs.refresh()
        report = warm_up(specs[worker::workers], jobs=max(1, len(os.sched_getaffinity(0)) // workers))
        assert not report.failed, str(report)
        yield here
    knobs.refresh()


def known_beforehand(items) -> list[tuple[Case | GroupedCase, Schedule | str | None]]:
    """Every (case, how) that the tests ``items`` name, once."""
    wanted = {}
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for value in (*parameters, *getattr(item.module, "KERNELS", ())):
            if isinstance(value, tuple(PROBLEM_OF)):
                value = (value, None)
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple(PROBLEM_OF)):
                wanted[value] = None
    return list(wanted)


def choice(case: Case | GroupedCase, how: Schedule | str | None, where: torch.device) -> tuple[object, Schedule]:
    """The problem of ``case`` and the schedule that computes it."""
    with knobs.scope(CHORD_W4A16_DEQUANT=how if isinstance(how, str) else None):
        problem = PROBLEM_OF[type(case)](case, where)
    return problem, how if isinstance(how, Schedule) else family(problem.family).schedule(problem)


@pytest.fixture
def own_cache(gpu, tmp_path) -> Iterator[None]:
    """A cache that no other test, worker or run has filled."""
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache")):
        yield


@pytest.fixture
def no_launch(monkeypatch):
    """A launch fails the test instead of running: an illegal one would break the context for every test behind it."""

    def refuse(launch, *values):
        pytest.fail("launched")

    monkeypatch.setattr(Launch, "__call__", refuse)


@pytest.fixture(scope="session")
def events():
    """Runs a function and returns what it asked of files, processes and imports."""
    sys.addaudithook(_listen)  # for the life of the process, hence the switch

    def during(function) -> list[str]:
        global _heard
        _heard = []
        try:
            function()
            return _heard
        finally:
            _heard = None

    return during


def _listen(event: str, arguments: tuple) -> None:
    if _heard is not None and event.startswith(OUTSIDE):
        _heard.append(f"{event} {arguments[:1]}")


@pytest.fixture(autouse=True)
def finished(request):
    """An asynchronous error belongs to the test that caused it."""
    yield
    if "gpu" in request.fixturenames and device.present():
        torch.cuda.synchronize()
