"""A whole run with a stand-in for the GPU: what is recorded, in which order things happen, and the file that comes out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from chord_jit import device
from chord_jit.bench import kernels, report, results, run
from chord_jit.bench.cases import CASES as EVERY_CASE
from chord_jit.bench.cases import SMOKE_DRAWS, Case, Draw, GroupedCase, Layer
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
    assert (result["gpu"], result["facts"]["sms"], result["peer"]) == ("NVIDIA H200", 132, None)
    assert (result["rounds"], result["flush"], result["failures"]) == (7, "write", [])
    assert result["kernels_hash"] == results.kernels_hash(result)
    path = results.save(result, tmp_path)
    assert path.name.endswith("-h200-smoke-0123abcd.json") and results.load(path) == json.loads(json.dumps(result))
    assert report.markdown_table(result).count("\n") == 4
    assert set(fixture.result()) <= set(result)


def test_values_differ_between_runs(machine):
    request = run.Request("smoke", CASES, peer=False)
    seeds = {run.run(request, lambda *step: None)["value_seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_a_kernel_that_does_not_compile_is_named_and_stops_no_other(machine, monkeypatch):
    spec = kernels.specs(CASES, device.target("sm_90a"))[0]
    failed = WarmupReport(0, 0, 1, 0.1, ((spec, CompileError("compile", "it must compile")),))
    monkeypatch.setattr(run, "warm_up", lambda specs: failed)
    result = run.run(run.Request("smoke", CASES, peer=False), lambda *step: None)
    assert len(result["rows"]) == 2 and "does not compile: it must compile" in result["failures"][0]
    assert results.doubts(result)[2] == result["failures"][0]


def test_a_case_that_fails_is_named_and_costs_no_other(machine, monkeypatch):
    def fail_first(bench, case, weights, peer):
        if case is CASES[0]:
            raise RuntimeError("illegal\naddress")
        return fixture.row(case=case.name)

    monkeypatch.setattr(run.measure, "measure", fail_first)
    kept = []
    result = run.run(run.Request("smoke", CASES, peer=False), lambda *step: None, lambda result: kept.append(len(result["rows"])))
    assert [row["case"] for row in result["rows"]] == ["tiny_gate_up_1"] and kept == [1, 1]
    assert result["failures"] == ["tiny_gate_up_4 failed: RuntimeError: illegal address"]


def test_a_layer_or_a_peer_that_fails_leaves_the_rest(machine, monkeypatch):
    monkeypatch.setattr(run.peers, "version", lambda: "0")
    monkeypatch.setattr(run.peers, "Humming", lambda *arguments: 1 / 0)
    result = run.run(run.Request("smoke", CASES), lambda *step: None)
    assert len(result["rows"]) == 2 and "no peer: ZeroDivisionError" in result["failures"][0]
    monkeypatch.setattr(run.workload, "weights", lambda layer, generator: 1 / 0)
    result = run.run(run.Request("smoke", CASES, peer=False), lambda *step: None)
    assert result["rows"] == [] and "tiny_gate_up failed" in result["failures"][0]


def test_the_dense_product_is_drawn_only_where_it_is_timed(machine, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "Dense", lambda generator: "dense")
    monkeypatch.setattr(run.measure, "measure", lambda bench, case, weights, peer: seen.append(bench.dense) or fixture.row(case=case.name))
    run.run(run.Request("smoke", CASES, peer=False), lambda *step: None)
    run.run(run.Request("smoke_grouped", (GroupedCase(LAYER, "offsets", 128),), peer=False), lambda *step: None)
    assert seen == [None, None, "dense"]


def test_whole_layers_are_drawn_once_and_read_for_the_bar(machine, monkeypatch):
    cases = EVERY_CASE["layer"][:2]
    packed = SimpleNamespace(nbytes=7)
    drawn = SimpleNamespace(ours=[SimpleNamespace(weights=SimpleNamespace(gate_up=packed))])
    asked = []
    monkeypatch.setattr(run.peers, "version", lambda: "0")
    monkeypatch.setattr(run.whole, "weights", lambda cases, generator, failures, *, peer: asked.append((len(cases), peer)) or drawn)
    monkeypatch.setattr(run.whole, "measure", lambda bench, case, weights: fixture.layer_row(case.name) if weights is drawn else 1 / 0)
    result = run.run(run.Request("layer", cases), lambda text, done, total: machine.append((text, done)))
    assert asked == [(2, True)] and result["reader_bar"]["bytes"] == 7 and result["failures"] == []
    assert [row["case"] for row in result["rows"]] == ["ep8_layer_1", "ep8_layer_8"]
    assert machine[-2:] == [("ep8_layer_1", 0), ("ep8_layer_8", 1)] and "3 layers" in machine[1][0]
