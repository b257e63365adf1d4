"""The whole-layer cases: shapes, draws and bytes."""

from __future__ import annotations

import pytest

from chord_jit.bench.cases import CASES, select
from chord_jit.bench.whole_cases import EP8_LAYER

LAYERS = CASES["layer"]
#: Tokens to active experts of 48 and megabytes of both projections.
SIZES = {1: (8, 198), 8: (38, 941), 20: (46, 1140), 50: (48, 1189), 128: (48, 1189), 512: (48, 1189), 2048: (48, 1189)}


def test_decode_and_prefill_take_the_draws_of_the_calls():
    assert {case.size: (case.active, round(case.bytes / 1e6)) for case in LAYERS} == SIZES
    calls = {case.draw for name in ("decode", "prefill") for case in CASES[name]}
    assert {case.draw for case in LAYERS} <= calls


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_every_pick_of_a_token_is_a_routed_row(case):
    counts = case.rows_per_expert()
    assert (case.rows, counts.sum(), counts.max()) == (8 * case.size, 8 * case.size, case.busiest)
    assert case.flops == 6 * case.rows * 7168 * 2048


def test_the_projections_belong_together():
    gate_up, down = EP8_LAYER.gate_up, EP8_LAYER.down
    assert (down.n, 2 * down.k, down.experts) == (gate_up.k, gate_up.n, gate_up.experts) == (7168, 4096, 48)
    assert EP8_LAYER.source.startswith("Kimi K2")


def test_tokens_select_a_case():
    assert [case.name for case in select("layer", (2048, 1), ("ep8_layer",))] == ["ep8_layer_1", "ep8_layer_2048"]
