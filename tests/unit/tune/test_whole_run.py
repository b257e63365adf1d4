"""Whole runs in real processes, on a machine that pretends to have an H200."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tune.pretend import microseconds

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def chord(tmp_path):
    """Runs the pretending command on a journal; gives the report, standard error, and the fastest schedule of each case."""

    def chord(*words: str, deadly: str = "none", cases: tuple[str, ...] = ("smoke",)):
        command = [sys.executable, "-m", "tests.unit.tune.pretend", deadly, "tune", "--cases", *cases, "--most", "7", "--json", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        best = {one["case"]: min(one["schedules"], key=lambda name: one["schedules"][name]["us"]) for one in report["contests"]}
        return report, done.stderr, best

    chord.journal = tmp_path / "run.jsonl"
    return chord


def test_every_family_is_measured_by_a_process_of_its_own(chord):
    report, error, _ = chord("--out", str(chord.journal), "--swiglu", "also", cases=("smoke", "smoke_grouped"))
    assert "tuning: 8/8" in error and "8 of 8 cases measured" in error
    for one in report["contests"]:
        assert one["finished"] and not one["refused"] and len(one["schedules"]) >= 5
        assert all(known["us"] == microseconds(name) for name, known in one["schedules"].items())
    assert {change["layout"] for change in report["changes"]} == {"indexed", "masked", "contiguous"}
    assert {change["change"] for change in report["changes"]} == {"+"}


def test_a_run_that_dies_or_is_cut_short_goes_on(chord):
    report, _, best = chord("--out", str(chord.journal))
    (winner,) = best.values()
    whole = chord.journal.read_bytes()
    chord.journal.write_bytes(whole[: len(whole) // 2])
    again, _, same = chord("--resume", str(chord.journal))
    assert same == best and again["changes"] == report["changes"] and chord.journal.read_bytes().startswith(whole[: len(whole) // 3])

    chord.journal.unlink()
    report, error, other = chord("--out", str(chord.journal), deadly=winner)
    (one,) = report["contests"]
    assert one["finished"] and one["refused"] == {winner: "the measuring process ended with exit code -9"}
    assert f"blamed on smoke_gate_up_4 16x512x1024 {winner}" in error and other != best
