"""The ``chord`` command on a machine that pretends to have an H200: kernels compute on the CPU and know their times.

``python -m tests.unit.tune.pretend DEADLY ARGUMENTS``: the schedule that prints as DEADLY kills its process. A process is
one of several: each is this module, started by the one before it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from types import SimpleNamespace

import torch

from chord_jit import cli, device
from chord_jit.bench import check, ours
from chord_jit.bench.timing import Spread
from chord_jit.cli import tune
from chord_jit.schedules.legality import violations
from chord_jit.tune import build, measure, session, worker

H200 = device.target("sm_90a")
DEADLY = sys.argv[1] if __name__ == "__main__" else ""
#: The inputs at hand and their result.
exact: list = [None, None]


def microseconds(schedule: object) -> float:
    """Any times will do, as long as every process tells the same."""
    return 100.0 + zlib.crc32(str(schedule).encode()) % 1000 / 10


class Call:
    def __init__(self, schedule, out, wanted):
        self.schedule, self._out, self._wanted = schedule, out, wanted

    def __call__(self):
        if str(self.schedule) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        self._out.copy_(self._wanted)


def scheduled(case, weight, inputs, facts, schedule, *, swiglu):
    assert violations(ours.free_problem(case, facts, swiglu=swiglu), schedule) == []
    out = inputs.empty_output(weight.n // 2 if swiglu else weight.n)
    if exact[0] is not inputs:
        exact[:] = inputs, check.exact(weight, inputs, swiglu=swiglu)
    return ours.Bound(Call(schedule, out, exact[1]), out, schedule)


def interleave(calls, flush, rounds, settle=0.0):
    return {name: Spread.of([microseconds(call.schedule)] * rounds) for name, call in calls.items()}


def start(arguments, journal):
    words = [*tune._words(arguments, arguments.model), "--resume", str(journal), "--worker"]
    return subprocess.Popen([sys.executable, "-m", "tests.unit.tune.pretend", DEADLY, "tune", *words])


def pretend() -> None:
    device.current = lambda: H200
    device.facts = lambda index: H200
    cpu = torch.device("cpu")
    worker.torch = SimpleNamespace(device=lambda *place: cpu, Generator=torch.Generator, cuda=SimpleNamespace(current_device=lambda: 0))
    worker.WriteFlush = lambda place: lambda: None
    session.driver = lambda: "580.1"
    measure.ours = SimpleNamespace(scheduled=scheduled)
    measure.interleave = interleave
    tune._worker = start
    build.engine = SimpleNamespace(build=lambda spec: SimpleNamespace(facts={"spill_bytes": 0}))
    build.warm_up = lambda specs, *, jobs, progress: None


if __name__ == "__main__":
    pretend()
    sys.exit(cli.main(sys.argv[2:]))
