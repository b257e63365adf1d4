"""Grouped inputs: rows where their layout says, poison everywhere else, one result however they lie, and the calls they become."""

from __future__ import annotations

import pytest
import torch

from chord_jit import device
from chord_jit.bench import check, grouped, ours, workload
from chord_jit.bench.cases import GroupedCase, Layer, Ragged
from chord_jit.reference.w4a16 import dequantize

LAYER = Layer("tiny_gate_up", 4, 128, 256, True, False, "test")
RAGGED = Ragged(seed=0, fewest=0, busiest=0)
CASES = {
    "masked": GroupedCase(LAYER, "masked", 3),
    "offsets": GroupedCase(LAYER, "offsets", 3),
    "blocks": GroupedCase(LAYER, "blocks", 3),
    "ragged": GroupedCase(LAYER, "offsets", 5, RAGGED),
}
#: Rows of ``x`` and first row of each expert.
PLACES = {"masked": (4 * 64, (0, 64, 128, 192)), "offsets": (12, (0, 3, 6, 9)), "blocks": (4 * 128, (0, 128, 256, 384))}


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def weights(generator):
    return workload.weights(LAYER, generator)


def firsts(name: str) -> tuple[int, ...]:
    if name != "ragged":
        return PLACES[name][1]
    counts = CASES[name].rows_per_expert().tolist()
    return tuple(sum(counts[:expert]) for expert in range(len(counts)))


@pytest.mark.parametrize("name", CASES)
def test_owned_rows_are_finite_and_the_rest_is_poison(name, generator):
    inputs = workload.inputs(CASES[name], generator)
    owned = torch.zeros(inputs.x.shape[0], dtype=torch.bool)
    for first, count in zip(firsts(name), CASES[name].rows_per_expert().tolist(), strict=True):
        owned[first : first + count] = True
    assert torch.equal(inputs.x.isfinite().all(1), owned) and torch.equal(inputs.x.isnan().all(1), ~owned)
    assert int(owned.sum()) == CASES[name].rows and inputs.x.dtype is torch.bfloat16
    assert name == "ragged" or inputs.x.shape[0] == PLACES[name][0]
    assert inputs.counts.tolist() == CASES[name].rows_per_expert().tolist() and inputs.active == (0, 1, 2, 3)


@pytest.mark.parametrize("name", CASES)
def test_the_exact_result_is_the_plain_formula(name, generator, weights):
    inputs = workload.inputs(CASES[name], generator)
    wanted = check.exact(weights.plain, inputs, swiglu=False)
    seen = torch.zeros(wanted.shape[0], dtype=torch.bool)
    for expert, (first, count) in enumerate(zip(firsts(name), inputs.counts.tolist(), strict=True)):
        rows = slice(first, first + count)
        torch.testing.assert_close(wanted[rows], inputs.x[rows].double() @ dequantize(weights.plain, expert).T, rtol=1e-12, atol=1e-14)
        seen[rows] = True
    assert bool(wanted[~seen].isnan().all()) and wanted.shape == inputs.empty_output(LAYER.n).shape
    assert check.exact(weights.fused, inputs, swiglu=True).shape[1] == LAYER.n // 2


def test_a_row_that_nobody_may_write_is_watched(generator, weights):
    inputs = workload.inputs(CASES["masked"], generator)
    wanted = check.exact(weights.plain, inputs, swiglu=False)
    out = wanted.to(torch.bfloat16)
    assert 1e-4 < check.relative_l2(out, wanted) < 4e-3
    out[5, 7] = 0.0
    assert check.relative_l2(out, wanted) == float("inf")
    assert check.relative_l2(check.forget_idle(out, wanted), wanted) < 4e-3
    out[0, 0] = float("nan")
    assert check.relative_l2(out, wanted) == float("inf")


def test_the_peer_is_told_of_the_same_rows(generator):
    masked = workload.inputs(CASES["masked"], generator).peer_arguments(64)
    assert masked["expert_layout"].dtype is torch.int32 and masked["expert_layout"].tolist() == [3, 3, 3, 3]
    assert masked["valid_shape_m"] == 12 and set(masked) == {"expert_layout", "valid_shape_m"}
    (offsets,) = workload.inputs(CASES["offsets"], generator).peer_arguments(64).values()
    assert offsets.dtype is torch.int64 and offsets.tolist() == [0, 3, 6, 9, 12]


class Recorder:
    """Stands in for the API, or for a family."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *positional, **named: self.calls.append((name, positional, named))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("forced", [False, True])
def test_calls_hand_over_what_the_api_takes(name, forced, generator, weights, monkeypatch):
    case, facts, recorder = CASES[name], device.target("sm_90a"), Recorder()
    inputs = workload.inputs(case, generator)
    schedule = ours.chosen(case, facts, swiglu=True)[1]
    monkeypatch.setattr(grouped, "api", recorder)
    monkeypatch.setattr(grouped.GroupedFamily, case_call(case), lambda self, *a, **k: getattr(recorder, case_call(case))(*a, **k))
    if forced:
        bound = ours.scheduled(case, weights.fused, inputs, facts, schedule, swiglu=True)
    else:
        bound = ours.public(case, weights.fused, inputs, facts, swiglu=True)
    bound.call()
    ((called, positional, named),) = recorder.calls
    assert called == case_call(case) and bound.schedule == schedule
    assert positional[0] is inputs.x and positional[1] is weights.fused and named.pop("out") is bound.out
    assert bound.out.shape == (inputs.x.shape[0], LAYER.n // 2) and bool(bound.out.isnan().all())
    assert named.pop("swiglu") is True and named.pop("checked", False) is False
    if case.layout == "masked":
        assert positional[2] is inputs.counts and positional[3] == 3 and named == {}
    else:
        offsets = named.pop("offsets")
        assert named == {"expected_rows": case.mean}
        assert (offsets is None) == (case.layout == "blocks") == (positional[2] is not None)
    if case.layout == "blocks":
        assert positional[2].unique().tolist() == [-1, 0, 1, 2, 3] and positional[2].numel() == inputs.x.shape[0]


def case_call(case: GroupedCase) -> str:
    return "masked" if case.layout == "masked" else "contiguous"
