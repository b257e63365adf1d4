"""A case from inputs to row, on the CPU: the GPU parts are stand-ins that compute on the CPU and know their times."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

import pytest
import torch

from chord_jit import device
from chord_jit.bench import check, measure, ours, report, targets, workload
from chord_jit.bench.cases import SMOKE_DRAWS, Case, GroupedCase, Layer, PrefillCase, Ragged
from chord_jit.bench.measure import Bench, Peer
from chord_jit.bench.power import Sustained
from chord_jit.bench.timing import Spread
from chord_jit.schedules.schedule import Schedule

LAYER = Layer("tiny_gate_up", 16, 128, 256, True, False, "test")
CASE = Case(LAYER, SMOKE_DRAWS[0])
PREFILL = PrefillCase(LAYER, SMOKE_DRAWS[0])
MASKED = GroupedCase(LAYER, "masked", 3)
RAGGED = GroupedCase(LAYER, "offsets", 128, Ragged(0, 111, 144), companions=(("ours_equal", GroupedCase(LAYER, "offsets", 128)),))
SCHEDULE = Schedule("w4a16_mma", 8, 128, 512, 3)
INDEXED_ARGUMENTS = {"sorted_ids", "expert_ids", "num_tokens_padded", "top_k"}


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


class StandInDense:
    us, flops = 40.0, 1 << 30


class StandInConfiguration(NamedTuple):
    """``factor``: what the result is off by; ``None`` for a configuration that does not run."""

    name: str
    us: float
    factor: float | None
    block_m: int = 8


class StandInPeer:
    """Leaves zeros in rows that are nobody's."""

    def __init__(self, wanted: torch.Tensor, default: StandInConfiguration, layout: str = "indexed", rows: int = CASE.rows):
        self._wanted, self._default, self._asked = wanted.nan_to_num(), default, (layout, rows)

    def default(self, layout: str, rows: int) -> StandInConfiguration:
        assert (layout, rows) == self._asked
        return self._default

    def call(self, configuration, x, out, rows):
        assert rows.keys() == ({"expert_layout", "valid_shape_m"} if self._asked[0] == "masked" else INDEXED_ARGUMENTS)
        if configuration.factor is None:
            def refuse():
                raise RuntimeError("no such kernel")
            return refuse
        return StandInCall(configuration.us, out, self._wanted, configuration.factor)


def peer(wanted: torch.Tensor, default: tuple, *others: tuple, case=CASE) -> Peer:
    copy = StandInPeer(wanted, StandInConfiguration(*default), case.layout, case.rows)
    return Peer(copy, {case.layout: [StandInConfiguration(*one) for one in others]})


def known_times(calls, flush, rounds: int, settle: float = 0.0, seconds: float | None = None) -> dict[str, Spread]:
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
        us = 20.0 if case in (one for _, one in RAGGED.companions) else 23.0 if swiglu else 25.0
        return ours.Bound(StandInCall(us, out, wanted, factors[swiglu]), out, SCHEDULE)

    readers = {form.name: StandInReader(index) for index, form in enumerate(measure.FORMS)}
    monkeypatch.setattr(measure.ours, "public", public)
    monkeypatch.setattr(measure, "_readers", lambda packed, active: readers)
    monkeypatch.setattr(measure, "interleave", known_times)
    monkeypatch.setattr(measure, "host_time", lambda call, gpu_us: Spread.of([9.0, 9.0]))
    drawn = {}
    draw = workload.inputs
    monkeypatch.setattr(measure.workload, "inputs", lambda case, generator: drawn.setdefault(case, draw(case, generator)))
    bench = Bench(device.target("sm_90a"), generator, lambda: None, StandInMeter(), rounds=5, energy=True, dense=StandInDense())
    return bench, weights, factors, exact_of(weights, CASE, generator), readers


def exact_of(weights, case, generator) -> torch.Tensor:
    return check.exact(weights.plain, measure.workload.inputs(case, generator), swiglu=False)


def test_a_row_holds_every_variant(place):
    bench, weights, _, wanted, readers = place
    row = measure.measure(bench, CASE, weights, peer(wanted, ("a", 30.0, 1.0), ("b", 28.0, 1.0), ("c", 26.0, 1.5), ("d", 1.0, None)))
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


def test_a_prefill_row_has_cublas_and_the_peer_beside_it_and_no_reader(place):
    bench, weights, _, _, readers = place
    wanted = exact_of(weights, PREFILL, bench.generator)
    row = measure.measure(bench, PREFILL, weights, peer(wanted, ("a", 30.0, 1.0), ("b", 28.0, 1.0)))
    assert set(row["variants"]) == {"cublas", "ours", "ours_swiglu", "peer_default", "peer_best"}
    assert all(row["variants"][name]["sustained"]["mj"] for name in ("cublas", "ours", "ours_swiglu", "peer_best"))
    assert (row["family"], row["kind"], row["layout"]) == ("indexed", "prefill", "indexed")
    assert (row["case"], row["size"], row["rows"]) == ("tiny_gate_up_prefill_32", 32, 32)
    assert all(reader.checked == 0 for reader in readers.values())


def test_a_masked_row_ignores_what_the_peer_leaves_between(place):
    bench, weights, _, _, _ = place
    wanted = exact_of(weights, MASKED, bench.generator)
    assert wanted.shape == (16 * 64, 128) and int(wanted[:, 0].isfinite().sum()) == 16 * 3
    row = measure.measure(bench, MASKED, weights, peer(wanted, ("a", 30.0, 1.0), ("b", 28.0, 1.0), case=MASKED))
    assert set(row["variants"]) == {"reader", "ours", "ours_swiglu", "peer_default", "peer_best"}
    assert row["variants"]["peer_default"]["error"] < 3e-3 and targets.peer_best(row) == 28.0
    assert (row["family"], row["layout"], row["size"], row["rows"], row["flops"]) == ("grouped", "masked", 3, 48, 2 * 48 * 128 * 256)


def test_a_ragged_row_has_its_equal_rows_and_cublas_beside_it(place):
    bench, weights, _, _, readers = place
    row = measure.measure(bench, RAGGED, weights, None)
    assert {name: targets.median(row, name) for name in row["variants"]} == {
        "cublas": 40.0, "ours": 25.0, "ours_swiglu": 23.0, "ours_equal": 20.0,
    }
    assert row["variants"]["cublas"]["flops"] == StandInDense.flops and row["variants"]["cublas"]["sustained"]["mj"] == 400.0
    assert "sustained" not in row["variants"]["ours_equal"] and "reader_forms" not in row
    assert (row["seed"], row["busiest"]) == (0, 144)
    assert all(reader.checked == 0 for reader in readers.values())


def test_a_refused_call_of_ours_costs_only_itself(place, monkeypatch):
    bench, weights, _, _, _ = place
    public = measure.ours.public

    def refuse_swiglu(*arguments, swiglu):
        if swiglu:
            raise RuntimeError("out of something")
        return public(*arguments, swiglu=swiglu)

    monkeypatch.setattr(measure.ours, "public", refuse_swiglu)
    row = measure.measure(bench, CASE, weights, None)
    assert row["variants"]["ours_swiglu"] == {"us": None, "error": float("inf"), "refused": "out of something"}
    assert targets.median(row, "ours") == 25.0 and row["host_us"]
    monkeypatch.setattr(measure.ours, "public", lambda *arguments, swiglu: refuse_swiglu(*arguments, swiglu=True))
    row = measure.measure(bench, CASE, weights, None)
    assert "host_us" not in row and report.status(row) == "refused: out of something"


def test_a_peer_that_raises_is_written_down(place):
    bench, weights, _, wanted, _ = place
    row = measure.measure(bench, CASE, weights, Peer(StandInPeer(wanted, None, rows=7), {}))
    assert "assert" in row["variants"]["peer_default"]["refused"] and targets.median(row, "ours") == 25.0


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
    row = measure.measure(bench, CASE, weights, peer(wanted, ("a", 30.0, 1.5), ("b", 28.0, 0.5)))
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
