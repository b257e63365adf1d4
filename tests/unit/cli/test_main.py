"""The command as a whole: what it accepts, how it refuses, what it returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chord_jit import cli
from chord_jit.cli import doctor
from chord_jit.version import VERSION

MISSING = "/no/such/folder"

#: Arguments, and what standard error must name: what was asked or which argument is wrong.
REFUSED = (
    ([], "COMMAND"),
    (["fly"], "invalid choice"),
    (["demo", "--tokens", "0"], "--tokens must be at least 1"),
    (["demo", "--tokens", "many"], "invalid int value"),
    (["demo", "--experts", "2", "--top-k", "3"], "top_k at most experts"),
    (["demo", "--hidden", "100"], "multiples of 32"),
    (["demo", "--arch", "sm_80"], "invalid choice"),
    (["demo", "--seed", str(2**64)], "the seed must fit 64 bits"),
    (["demo", "--folder", "/dev/null"], "can be made and written"),
    (["demo", "--folder", "/proc/no/such"], "can be made and written"),
    (["warmup"], "CONFIG"),
    (["warmup", MISSING], "must exist"),
    (["warmup", MISSING, "--jobs", "0"], "--jobs must be at least 1"),
    (["warmup", MISSING, "--sms", "-4"], "--sms must be at least 1"),
    (["cache"], "action"),
    (["cache", "burn"], "invalid choice"),
    (["cache", "clear"], "--yes"),
    (["cache", "prune"], "--max-bytes"),
    (["cache", "import"], "FILE"),
    (["cache", "export"], "FILE"),
    (["cache", "why"], "A"),
    (["inspect"], "KERNEL"),
    (["inspect", "ab", "--lines", "0"], "must be at least 1"),
)


def outcome(argv: list[str]) -> int:
    try:
        return cli.main(argv)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("argv, named", REFUSED, ids=[" ".join(argv) or "nothing" for argv, _ in REFUSED])
def test_bad_input_exits_with_2(argv, named, capsys):
    assert outcome(argv) == 2
    captured = capsys.readouterr()
    assert named in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_a_refusal_has_rule_values_and_remedy(capsys):
    assert cli.main(["warmup", MISSING]) == 2
    message = capsys.readouterr().err
    assert message.startswith("chord warmup: ") and all(part in message for part in ("rule:", "values:", "remedy:", MISSING))


def test_a_malformed_variable_is_named(monkeypatch, capsys):
    from chord_jit import knobs

    monkeypatch.setenv("CHORD_LOCK_TIMEOUT", "soon")
    monkeypatch.setattr(knobs, "_values", None)
    assert cli.main(["doctor"]) == 2
    message = capsys.readouterr().err
    assert "CHORD_LOCK_TIMEOUT" in message and "'soon'" in message


def test_the_unexpected_exits_with_1_and_a_traceback(monkeypatch, capsys):
    def broken(arguments):
        raise RuntimeError("the disk sang")

    monkeypatch.setattr(doctor, "run", broken)
    assert cli.main(["doctor"]) == 1
    assert "Traceback" in (message := capsys.readouterr().err) and "the disk sang" in message


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    def stopped(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", stopped)
    assert cli.main(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


STARTS = ([sys.executable, "-m", "chord_jit"], [str(Path(sys.executable).with_name("chord"))])


@pytest.mark.parametrize("command", STARTS, ids=["module", "script"])
def test_both_ways_to_start_it(command):
    result = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"chord_jit {VERSION}\n")


def test_help_names_every_command(capsys):
    assert outcome(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)
