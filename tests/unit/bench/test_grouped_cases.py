"""The grouped cases: layouts and rows of each set, counts that their seeds reproduce, and what takes turns with them."""

from __future__ import annotations

import numpy as np
import pytest

from chord_jit.bench.cases import CASES, GroupedCase
from chord_jit.bench.grouped_cases import RAGGED, RAGGED_FEW

EVERY_CASE = [case for cases in CASES.values() for case in cases if case.family == "grouped"]
LAYERS = {
    "ep8_gate_up": (48, 4096, 7168), "ep8_down": (48, 7168, 2048), "ep16_gate_up": (24, 4096, 7168), "ep16_down": (24, 7168, 2048),
    "ep32_gate_up": (12, 4096, 7168), "ep32_down": (12, 7168, 2048),
}  # fmt: skip


def ids(case: GroupedCase) -> str:
    return case.name


def sizes(case_set: str, layer: str) -> list[tuple[str, int]]:
    return [(case.layout, case.size) for case in CASES[case_set] if case.layer.name == layer]


@pytest.mark.parametrize("layer", ["ep8_gate_up", "ep8_down"])
def test_decode_is_masked_and_prefill_contiguous(layer):
    assert sizes("grouped", layer) == [
        ("masked", 8), ("masked", 16), ("masked", 32), ("masked", 64), ("offsets", 128), ("offsets", 256), ("offsets", 512),
    ]  # fmt: skip
    assert sizes("ragged", layer) == [("offsets", 128), ("offsets", 256), ("offsets", 512)]
    assert sizes("ragged_few", layer) == [("offsets", 16), ("offsets", 32), ("offsets", 64)]


@pytest.mark.parametrize("layer", ["ep16_gate_up", "ep16_down", "ep32_gate_up", "ep32_down"])
def test_fewer_experts_at_four_sizes(layer):
    assert sizes("ep", layer) == [("masked", 16), ("masked", 64), ("offsets", 128), ("offsets", 512)]


def test_the_layers_are_kimi_k2():
    layers = {case.layer for name in ("grouped", "ragged", "ep") for case in CASES[name]}
    assert {layer.name: (layer.experts, layer.n, layer.k) for layer in layers} == LAYERS
    assert all(layer.source.startswith("Kimi K2") for layer in layers)


@pytest.mark.parametrize("case", EVERY_CASE, ids=ids)
def test_counts_are_those_of_the_row(case):
    counts = case.rows_per_expert()
    assert counts.shape == (case.layer.experts,) and counts.sum() == case.rows == case.size * case.layer.experts
    assert (counts.max(), (counts > 0).sum()) == (case.busiest, case.active)
    assert np.array_equal(counts, case.rows_per_expert())
    if case.draw:
        assert counts.min() == case.draw.fewest < case.size < case.draw.busiest
    else:
        assert set(counts.tolist()) == {case.size}


@pytest.mark.parametrize(
    ("rows", "fewest", "busiest"), [(16, 9, 22), (32, 17, 47), (64, 50, 80), (128, 108, 149), (256, 217, 297), (512, 468, 559)]
)
def test_random_rows_spread_as_they_should(rows, fewest, busiest):
    """Within four standard deviations of a binomial draw over 48 experts."""
    draw = (RAGGED | RAGGED_FEW)[rows]
    assert (draw.fewest, draw.busiest) == (fewest, busiest)
    assert max(rows - fewest, busiest - rows) < 4 * rows**0.5


def test_a_ragged_case_takes_turns_with_equal_rows():
    for case in (*CASES["ragged"], *CASES["ragged_few"]):
        ((name, equal),) = case.companions
        assert name == "ours_equal" and equal.draw is None
        assert (equal.layer, equal.layout, equal.rows) == (case.layer, "offsets", case.rows)


def test_one_layer_shows_both_contiguous_layouts():
    paired = {case.layer.name: case.companions[0] for case in CASES["grouped"] if case.companions}
    assert {layer: (name, other.layout) for layer, (name, other) in paired.items()} == {"ep8_gate_up": ("ours_m_indices", "blocks")}


def test_a_masked_buffer_holds_twice_the_rows():
    assert [case.max_m for case in CASES["grouped"][:4]] == [64, 64, 64, 128]


def test_what_bounds_a_case_takes_turns_with_it():
    bounds = {case.size: (case.reads, case.multiplies) for case in CASES["grouped"]}
    assert bounds == {8: (True, False), 16: (True, False), 32: (True, False), 64: (True, True), 128: (False, True)} | {
        256: (False, True), 512: (False, True)
    }  # fmt: skip


def test_work_is_counted_over_the_rows_that_are_computed():
    case = next(case for case in CASES["grouped"] if case.name == "ep8_gate_up_masked_64")
    assert case.flops == 2 * 48 * 64 * 4096 * 7168
    assert case.bytes == 48 * (4096 * 7168 // 2 + 2 * 4096 * 7168 // 32)
