"""Runs the measuring part in a process of its own, and starts it again where a schedule killed or hung it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chord_jit.tune.held import by_contest
from chord_jit.tune.journal import Journal

#: Longer than drawing and packing the largest layer takes; every other step writes to the journal sooner.
QUIET_SECONDS = 180.0
#: Faults that a run may have; more mean that the kernel or the GPU is broken.
MOST_FAULTS = 12
#: Exit codes of a process that another one would follow: done, refused, interrupted.
_FINAL = (0, 2, 130)
_POLL_SECONDS = 0.2


def supervise(start: Callable[[], subprocess.Popen], path: Path, *, quiet_seconds: float = QUIET_SECONDS) -> int:
    """Run ``start()`` as often as it takes to measure everything; returns the exit code of the command.

    A process that dies, or writes nothing to the journal at ``path`` for ``quiet_seconds``, is blamed on the schedule
    whose first launch has had no outcome, which is refused in the journal, or on the contest whose schedules took turns,
    which is given up after the second time. The next process goes on behind it. Two deaths in a row with nobody to blame
    end the run.
    """
    faults = blameless = 0
    while True:
        before = len(Journal.read(path).lines)
        why, code = _watch(start(), path, quiet_seconds)
        if code in _FINAL:
            return code
        blamed = _blame(path, before, why)
        sys.stderr.write(f"chord tune: {why}; {'blamed on ' + blamed if blamed else 'nobody to blame'}\n")
        faults, blameless = faults + 1, 0 if blamed else blameless + 1
        if blameless == 2 or faults > MOST_FAULTS:
            sys.stderr.write(f"chord tune: gave up after {faults} faults; what was measured is in {path}\n")
            return 1


def _watch(process: subprocess.Popen, path: Path, quiet_seconds: float) -> tuple[str, int]:
    """Why the process ended, in words, and its exit code."""
    size, since = -1, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            if path.stat().st_size != size:
                size, since = path.stat().st_size, time.monotonic()
            elif time.monotonic() - since > quiet_seconds:
                process.kill()
                process.wait()
                return f"nothing was measured for {quiet_seconds:.0f} s", -9
    except BaseException:
        process.kill()
        process.wait()
        raise
    return f"the measuring process ended with exit code {process.returncode}", process.returncode


def _blame(path: Path, before: int, why: str) -> str:
    """Write down what a process left open, or find what it refused at last; returns it by name."""
    journal = Journal.read(path)
    for contest, held in by_contest(journal.lines).items():
        if held.started:
            journal.append({"contest": contest, "at": "refused", "schedule": held.started, "why": why})
        elif held.turns:
            journal.append({"contest": contest, "at": "died", "why": why})
    last = journal.lines[-1] if len(journal.lines) > before else {"at": "nothing"}
    return " ".join((last["contest"], last.get("schedule", ""))).strip() if last["at"] in ("refused", "died") else ""
