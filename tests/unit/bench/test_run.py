"""A whole run with a stand-in for the GPU: what is recorded, in which order things happen, and the file that comes out."""

from __future__ import annotations

import json

import pytest
import torch

from chord_jit import device
from chord_jit.bench import report, results, run
from chord_jit.bench.cases import SMOKE_DRAWS, Case, Draw, Layer
from chord_jit.errors import CompileError
from chord_jit.jit.warmup import WarmupReport
from tests.unit.bench import fixture

LAYER = Layer("tiny_gate_up", 16, 128, 256, True, False, "test")
CASES = (Case(LAYER, SMOKE_DRAWS[0]), Case(LAYER, Draw(1, 16, seed=0, active=8, busiest=1)))


class StandInMeter:
    def __init__(self, place):
        self.place = place

    def facts(self) -> dict:
        return fixture.result()["clocks"]


@pytest.fixture
def machine(monkeypatch):
    """A CPU that says it is an H200; returns the log of steps."""
    monkeypatch.setattr(run.device, "facts", lambda index: device.target("sm_90a"))
    monkeypatch.setattr(run.torch, "device", lambda kind, index: torch.empty(0).device)
    monkeypatch.setattr(run, "WriteFlush", lambda place: lambda: None)
    monkeypatch.setattr(run, "Meter", StandInMeter)
    monkeypatch.setattr(run, "warm_up", lambda specs: WarmupReport(len(set(specs)), 0, 0, 0.1, ()))
    monkeypatch.setattr(run.measure, "reader_bar", lambda bench, packed: {"bytes": packed.nbytes, "us": 10.0, "form": "f"})
    monkeypatch.setattr(run.measure, "measure", lambda bench, case, weights, peer: fixture.row(case=case.name, layer=case.layer.name))
    return []


def test_a_run_records_what_it_ran_on(machine, tmp_path):
    request = run.Request("smoke", CASES, rounds=7, peer=False, commit="0123abcd", command="chord bench --cases smoke")
    result = run.run(request, lambda text, done, total: machine.append((text, done, total)))
    assert [row["case"] for row in result["rows"]] == ["tiny_gate_up_4", "tiny_gate_up_1"]
    assert machine == [
        ("compiling", 0, 2), ("tiny_gate_up: drawing and packing weights", 0, 2), ("tiny_gate_up_4", 0, 2), ("tiny_gate_up_1", 1, 2),
    ]
    assert (result["gpu"], result["sms"], result["peer"], result["rounds"], result["flush"]) == ("NVIDIA H200", 132, None, 7, "write")
    assert result["tree_hash"] == results.tree_hash()
    path = results.save(result, tmp_path)
    assert path.name.endswith("-h200-smoke-0123abcd.json") and results.load(path) == json.loads(json.dumps(result))
    assert report.markdown_table(result).count("\n") == 4
    assert set(fixture.result()) <= set(result)


def test_values_differ_between_runs(machine):
    request = run.Request("smoke", CASES, peer=False)
    seeds = {run.run(request, lambda *step: None)["value_seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_a_kernel_that_does_not_compile_stops_the_run(machine, monkeypatch):
    monkeypatch.setattr(run, "warm_up", lambda specs: WarmupReport(0, 0, 1, 0.1, ()))
    with pytest.raises(CompileError, match="failed=1"):
        run.run(run.Request("smoke", CASES, peer=False), lambda *step: None)
