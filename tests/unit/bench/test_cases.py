"""The indexed cases: counts, bytes, and seeds that reproduce their draws; and the selection among all sets."""

from __future__ import annotations

import numpy as np
import pytest

from chord_jit.bench.cases import CASES, EP8_DRAWS, Case, find_seed, select
from chord_jit.errors import InputError

INDEXED = [case for cases in CASES.values() for case in cases if case.family == "indexed"]
#: One of each draw that takes no second.
QUICK = list({case.draw: case for case in INDEXED if case.draw.tokens <= 2048}.values())

#: Active experts and megabytes of gate/up that EP8 decode has at each token count; down has half of the bytes.
EP8 = {1: (8, 132), 2: (14, 231), 4: (25, 413), 8: (38, 628), 20: (46, 760), 30: (48, 793), 40: (48, 793), 50: (48, 793)}
SHAPES = {
    "ep8_gate_up": (48, 4096, 7168), "ep8_down": (48, 7168, 2048), "tp8_gate_up": (384, 512, 7168), "tp8_down": (384, 7168, 256),
}  # fmt: skip
PREFILL = (1024, 2048, 4096, 8192, 16384)


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", list({case.draw: case for case in INDEXED}.values()), ids=ids)
def test_a_seed_gives_the_counts_of_its_row(case):
    picks = case.draw.topk_ids()
    counts = case.draw.rows_per_expert()
    assert picks.shape == (case.draw.tokens, case.draw.picks) and picks.dtype == np.int32
    assert all(len(set(row)) == case.draw.picks for row in picks.tolist())
    assert ((counts > 0).sum(), counts.max(), counts.sum()) == (case.draw.active, case.draw.busiest, case.rows)


@pytest.mark.parametrize("case", QUICK, ids=ids)
def test_two_draws_of_one_row_are_equal(case):
    assert np.array_equal(case.draw.topk_ids(), case.draw.topk_ids())


@pytest.mark.parametrize("draw", EP8_DRAWS, ids=lambda draw: str(draw.tokens))
def test_the_seed_is_the_first_that_fits(draw):
    assert find_seed(draw.tokens, 48, EP8[draw.tokens][0], busiest=8 if draw.tokens == 20 else None) == draw


@pytest.mark.parametrize("case", CASES["decode"], ids=ids)
def test_ep8_bytes(case):
    experts, megabytes = EP8[case.draw.tokens]
    assert case.draw.active == experts
    assert case.bytes == pytest.approx(1e6 * megabytes / (2 if case.layer.routed_input else 1), rel=5e-3)


@pytest.mark.parametrize("case", INDEXED, ids=ids)
def test_packed_bytes_are_codes_and_scales(case):
    layer = case.layer
    assert layer.expert_bytes == layer.n * layer.k // 2 + 2 * layer.n * layer.k // 32


def test_the_deployments_are_kimi_k2():
    layers = {case.layer.name: case.layer for name in ("decode", "tp8", "prefill", "prefill_tp8") for case in CASES[name]}
    assert {name: (layer.experts, layer.n, layer.k) for name, layer in layers.items()} == SHAPES
    assert {name for name, layer in layers.items() if layer.gated} == {"ep8_gate_up", "tp8_gate_up"}
    assert all(layer.source.startswith("Kimi K2") for layer in layers.values())


@pytest.mark.parametrize(
    ("case_set", "layers", "counts", "experts"),
    [("prefill", ("ep8_gate_up", "ep8_down"), "rows", 48), ("prefill_tp8", ("tp8_gate_up", "tp8_down"), "tokens", 384)],
)
def test_prefill_is_sized_as_its_deployment_counts(case_set, layers, counts, experts):
    cases = CASES[case_set]
    assert [(case.name, case.size) for case in cases] == [(f"{layer}_prefill_{size}", size) for layer in layers for size in PREFILL]
    for case in cases:
        tokens = case.size if counts == "tokens" else case.size // 8
        assert (case.draw.tokens, case.draw.picks, case.draw.experts, case.rows) == (tokens, 8, experts, 8 * tokens)
        assert case.layer.experts == case.active == experts


def test_cublas_takes_turns_with_prefill_and_the_reader_with_decode():
    bounds = {(case.kind, case.reads, case.multiplies) for case in INDEXED}
    assert bounds == {("indexed", True, False), ("prefill", False, True)}


def test_prefill_draws_are_as_uneven_as_random_ones_are():
    """Within five standard deviations of what a random expert gets."""
    for case in (*CASES["prefill"], *CASES["prefill_tp8"]):
        mean = case.rows / case.layer.experts
        assert mean < case.busiest < mean + 5 * mean**0.5


def test_naming_and_counting_every_case_draws_nothing(monkeypatch):
    monkeypatch.setattr(np.random, "PCG64", None)
    for case in INDEXED:
        assert case.name and case.rows * case.layer.n * case.layer.k * 2 == case.flops


def test_select_takes_sizes_and_layers_in_table_order():
    assert [case.name for case in select("decode", (20, 1))] == ["ep8_gate_up_1", "ep8_gate_up_20", "ep8_down_1", "ep8_down_20"]
    assert [case.name for case in select("grouped", (64, 128), ("ep8_down",))] == ["ep8_down_masked_64", "ep8_down_offsets_128"]
    assert select("tp8") == CASES["tp8"]
    assert [case.rows for case in select("prefill_tp8", (2048,))] == [16384, 16384]


@pytest.mark.parametrize(
    ("case_set", "sizes", "layers", "word"),
    [("absent", (), (), "absent"), ("decode", (3,), (), "size=.3."), ("ep", (), ("ep8_down",), "ep8_down")],
)
def test_select_refuses_what_the_set_lacks(case_set, sizes, layers, word):
    with pytest.raises(InputError, match=word):
        select(case_set, sizes, layers)


def test_names_are_of_one_case_within_a_set():
    for cases in CASES.values():
        assert len({case.name for case in cases}) == len(cases)


def test_counts_that_no_draw_meets_are_refused():
    with pytest.raises(InputError, match="active=9"):
        find_seed(1, 16, active=9)
