"""A warm lookup asks the operating system for nothing. Shown in a process that the kernel kills at the first system call."""

from __future__ import annotations

import signal
import time

import pytest

from chord_jit.jit import engine, loader
from tests.toy import processes
from tests.toy.family import spec
from tools.startup import strict

#: The bound of issue 5 is 5 us; a shared core may be slow, a file access would be slower still.
ROUNDS, BOUND = 20_000, 20e-6


def strictly(call) -> tuple[bytes, int]:
    """What a child that may only read and write wrote around ``call``, and the signal that ended it."""
    written, ended_by = strict.strictly(call, ROUNDS)
    if written == strict.CANNOT:
        pytest.skip("this machine has no strict seccomp")
    return written, ended_by


def _warm(rounds: int) -> None:
    wanted = spec()
    for _ in range(rounds):
        engine.load(wanted, 0)


@pytest.fixture
def loaded(fake, monkeypatch):
    """Loads succeed without a driver; a fork does not forget them, or the child would be cold."""
    monkeypatch.setattr(loader, "capturing", lambda device: False)
    monkeypatch.setattr(loader, "load_library", lambda entry: 7)
    monkeypatch.setattr(loader, "bind", loader.Kernel)
    return engine.load(spec(), 0)


def test_v20_a_warm_lookup_makes_no_system_call(loaded):
    def warm(rounds):
        engine.load(spec(), 0)
        _warm(rounds)

    written, ended_by = strictly(warm)
    assert written == b"begun ended" and ended_by == signal.SIGKILL


def test_the_trap_sees_a_system_call(loaded, place):
    written, ended_by = strictly(lambda rounds: place.root.exists())
    assert written == b"begun " and ended_by == signal.SIGKILL


def test_a_warm_lookup_is_quick(loaded):
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        _warm(2000)
        best = min(best, (time.perf_counter() - started) / 2000)
    assert best < BOUND


#: What a process prints: which of these packages it has imported once it has a kernel, and where the kernel came from.
IMPORTED = """
origin = engine.build(spec()).origin
print(json.dumps([origin, sorted({"cuda", "filelock", "jinja2", "platformdirs", "torch"} & sys.modules.keys())]))
"""


def test_a_process_that_finds_its_kernel_imports_no_package_for_it(tmp_path):
    """The first process compiles, and so imports the locks: the check can see an import."""
    found = [processes.answers(processes.start(tmp_path, IMPORTED))[0] for _ in range(2)]
    assert found == [["compiled", ["filelock"]], ["hit", []]]
