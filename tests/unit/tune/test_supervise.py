"""A measuring process that dies or hangs costs its schedule, never the run. The processes are real and small."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from chord_jit.tune.held import by_contest
from chord_jit.tune.journal import Journal
from chord_jit.tune.supervise import MOST_FAULTS, supervise
from tests.unit.tune.fakes import header

#: What a process does: ``line(at=..., schedule=...)`` writes to the journal; the journal's lines are in ``lines``.
PRELUDE = """
import json, os, signal, sys, time
path = {path!r}
lines = [json.loads(text) for text in open(path).read().splitlines()[1:]]
refused = {{one["schedule"] for one in lines if one["at"] == "refused"}}
def line(**fields):
    with open(path, "a") as file:
        file.write(json.dumps({{"contest": "x", **fields}}) + "\\n")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal.create(path, header())
    starts = []

    def run(body: str, quiet_seconds: float = 60.0) -> int:
        def start():
            starts.append(subprocess.Popen([sys.executable, "-S", "-c", PRELUDE.format(path=str(path)) + body]))
            return starts[-1]

        return supervise(start, path, quiet_seconds=quiet_seconds)

    run.path, run.starts = path, starts
    run.held = lambda: by_contest(Journal.read(path).lines)["x"]
    return run


def test_a_process_that_ends_well_ends_the_run(run):
    assert run("line(at='started', schedule='a'); line(at='checked', schedule='a')") == 0
    assert len(run.starts) == 1 and run.held().refused == {}


def test_a_schedule_that_kills_the_process_is_left_out_and_the_rest_goes_on(run, capsys):
    body = "for name in 'abc':\n    if name not in refused:\n        line(at='started', schedule=name)\n        if name in 'ac': die()\n"
    assert run(body + "        line(at='checked', schedule=name)\n") == 0
    assert run.held().refused == dict.fromkeys("ac", "the measuring process ended with exit code -9") and len(run.starts) == 3
    assert "blamed on x a" in capsys.readouterr().err


def test_a_schedule_that_hangs_is_left_out(run):
    began = time.monotonic()
    assert run("if not refused:\n    line(at='started', schedule='a')\n    time.sleep(600)", quiet_seconds=1.0) == 0
    assert run.held().refused.keys() == {"a"} and time.monotonic() - began < 30


def test_a_process_that_writes_is_not_taken_for_hung(run):
    assert run("for _ in range(8):\n    time.sleep(0.4); line(at='checked', schedule='a')", quiet_seconds=2.0) == 0


def test_a_schedule_that_the_process_refused_itself_before_it_died(run):
    assert run("if not refused:\n    line(at='started', schedule='a'); line(at='refused', schedule='a', why='fault'); sys.exit(1)") == 0
    assert run.held().refused == {"a": "fault"}


def test_death_during_turns_is_the_contests(run):
    body = "if sum(one['at'] == 'died' for one in lines) < 2:\n    line(at='turns', stage=0)\n    die()"
    assert run(body) == 0
    assert run.held().deaths == 2 and run.held().refused == {}


def test_a_torn_line_of_a_killed_process_is_no_harm(run):
    body = "if not refused:\n    line(at='started', schedule='a')\n    open(path, 'a').write('{\"contest\": \"x\", \"at')\n    die()"
    assert run(body) == 0
    assert run.held().refused.keys() == {"a"} and all(json.loads(text) for text in run.path.read_text().splitlines())


def test_nobody_to_blame_twice_ends_the_run(run, capsys):
    assert run("sys.exit(1)") == 1
    assert len(run.starts) == 2 and str(run.path) in capsys.readouterr().err


def test_a_kernel_that_is_broken_throughout_ends_the_run(run):
    assert run("line(at='started', schedule=str(len(lines))); die()") == 1
    assert len(run.starts) == MOST_FAULTS + 1


@pytest.mark.parametrize("code", [2, 130])
def test_refusals_and_interrupts_are_passed_on(run, code):
    assert run(f"sys.exit({code})") == code and len(run.starts) == 1


def test_an_interrupt_here_leaves_no_process(run, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("chord_jit.tune.supervise.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("time.sleep(600)")
    assert run.starts[0].poll() is not None
