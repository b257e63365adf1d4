"""A case from inputs to row, on the CPU: the GPU parts are stand-ins that compute on the CPU and know their times."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from chord_jit import device
from chord_jit.bench import check, measure, ours, report, targets, workload
from chord_jit.bench.cases import SMOKE_DRAWS, Case, Layer
from chord_jit.bench.measure import Bench, Peer
from chord_jit.bench.power import Sustained
from chord_jit.bench.timing import Spread
from chord_jit.schedules.schedule import Schedule

CASE = Case(Layer("tiny_gate_up", 16, 128, 256, True, False, "test"), SMOKE_DRAWS[0])
SCHEDULE = Schedule("w4a16_mma", 8, 128, 512, 3)


class StandInReader:
    """Reads nothing; forms get slower in the order of the set."""

    def __init__(self, place: int):
        self.us, self.checked = 20.0 + place, 0

    def check(self) -> None:
        self.checked += 1


class StandInCall:
    """Fills ``out`` with the exact result times ``factor``."""

    def __init__(self, us: float, out: torch.Tensor, wanted: torch.Tensor, factor: float = 1.0):
        self.us, self._out, self._result = us, out, wanted * factor

    def __call__(self) -> None:
        self._out.copy_(self._result)


class StandInPeer:
    """Configurations are (name, us, factor)."""

    def __init__(self, wanted: torch.Tensor, default: tuple):
        self._wanted, self._default = wanted, default

    def default(self, rows: int) -> tuple:
        assert rows == CASE.rows
        return self._default

    def call(self, configuration, x, topk_ids, out):
        name, us, factor = configuration
        if factor is None:
            def refuse():
                raise RuntimeError("no such kernel")
            return refuse
        return StandInCall(us, out, self._wanted, factor)


def known_times(calls, flush, rounds: int, settle: float = 0.0) -> dict[str, Spread]:
    return {name: Spread.of([call.us] * rounds) for name, call in calls.items()}


class StandInMeter:
    def sustained(self, call) -> Sustained:
        return Sustained(call.us, 10 * call.us, 600.0, 1700)


@pytest.fixture(scope="module")
def weights():
    return workload.weights(CASE.layer, torch.Generator().manual_seed(20))


@pytest.fixture
def place(monkeypatch, seed, weights):
    """A bench on the CPU; ``factors`` changes what ours computes."""
    generator = torch.Generator().manual_seed(seed)
    factors = {False: 1.0, True: 1.0}

    def public(case, weight, inputs, facts, *, swiglu):
        out = inputs.empty_output(weight.n // 2 if swiglu else weight.n)
        wanted = check.exact(weight, inputs, swiglu=swiglu)
        return ours.Bound(StandInCall(23.0 if swiglu else 25.0, out, wanted, factors[swiglu]), out, None, SCHEDULE)

    readers = {form.name: StandInReader(index) for index, form in enumerate(measure.FORMS)}
    monkeypatch.setattr(measure.ours, "public", public)
    monkeypatch.setattr(measure, "_readers", lambda packed, active: readers)
    monkeypatch.setattr(measure, "interleave", known_times)
    monkeypatch.setattr(measure, "host_time", lambda call: Spread.of([9.0, 9.0]))
    inputs = workload.inputs(CASE, generator)
    monkeypatch.setattr(measure.workload, "inputs", lambda case, generator: inputs)
    bench = Bench(device.target("sm_90a"), generator, lambda: None, StandInMeter(), rounds=5, energy=True)
    return bench, weights, factors, check.exact(weights.plain, inputs, swiglu=False), readers


def test_a_row_holds_every_variant(place):
    bench, weights, _, wanted, readers = place
    peer = Peer(StandInPeer(wanted, ("a", 30.0, 1.0)), [("b", 28.0, 1.0), ("c", 26.0, 1.5), ("d", 1.0, None)])
    row = measure.measure(bench, CASE, weights, peer)
    assert {name: targets.median(row, name) for name in row["variants"]} == {
        "reader": 20.0, "ours": 25.0, "ours_swiglu": 23.0, "peer_default": 30.0, "peer_best": 28.0,
    }
    assert row["variants"]["reader"]["form"] == measure.FORMS[0].name and set(row["reader_forms"]) == set(readers)
    assert all(reader.checked == 1 for reader in readers.values())
    assert row["variants"]["peer_best"]["tried"] == 4
    assert row["variants"]["ours"]["sustained"]["mj"] == 250.0
    assert {name for name, one in row["variants"].items() if "sustained" in one} == {"reader", "ours", "ours_swiglu", "peer_best"}
    assert 1e-4 < row["variants"]["ours"]["error"] < 2e-3
    assert (row["case"], row["rows"], row["active"], row["bytes"]) == (CASE.name, 32, 16, CASE.bytes)
    assert row["host_us"] == asdict(Spread.of([9.0, 9.0]))
    assert report.status(row) == "pass"


def test_a_wrong_result_gets_no_time(place):
    bench, weights, factors, _, _ = place
    factors[False] = 1.02
    row = measure.measure(bench, CASE, weights, None)
    assert row["variants"]["ours"]["us"] is None and row["variants"]["ours"]["error"] == pytest.approx(0.02, rel=0.1)
    assert targets.median(row, "ours_swiglu") == 23.0
    assert report.status(row) == "wrong result"


def test_a_small_excess_of_error_is_timed_and_missed(place):
    bench, weights, factors, _, _ = place
    factors[True] = 1.003
    row = measure.measure(bench, CASE, weights, None)
    assert targets.median(row, "ours_swiglu") == 23.0
    assert "error of ours_swiglu" in report.status(row)


def test_a_peer_that_is_never_right_is_no_best(place):
    bench, weights, _, wanted, _ = place
    row = measure.measure(bench, CASE, weights, Peer(StandInPeer(wanted, ("a", 30.0, 1.5)), [("b", 28.0, 0.5)]))
    assert "peer_best" not in row["variants"] and targets.median(row, "peer_default") is None
    assert targets.peer_best(row) is None


def test_without_energy_no_loop_runs(place):
    bench, weights, _, _, _ = place
    quick = Bench(bench.facts, bench.generator, bench.flush, None, rounds=5, energy=False)
    row = measure.measure(quick, CASE, weights, None)
    assert all("sustained" not in variant for variant in row["variants"].values())


def test_the_bar_is_read_at_760_megabytes_or_not_at_all(place, monkeypatch):
    bench, weights, _, _, readers = place
    assert measure.reader_bar(bench, weights.plain) is None
    asked = []
    monkeypatch.setattr(measure, "_readers", lambda packed, active: asked.append(active) or readers)
    monkeypatch.setattr(targets, "READER_BAR_BYTES", 5.2 * CASE.layer.expert_bytes)
    for reader in readers.values():
        reader.bytes = 5 * CASE.layer.expert_bytes
    assert measure.reader_bar(bench, weights.plain) == {"bytes": 5 * CASE.layer.expert_bytes, "us": 20.0, "form": measure.FORMS[0].name}
    assert asked == [(0, 1, 2, 3, 4)]
