"""The bench of whole layers on a GPU: the stand-ins do what they stand for, and a small layer is checked and timed as a graph."""

from __future__ import annotations

import pytest
import torch

from chord_jit import device
from chord_jit.bench import stand_ins, whole
from chord_jit.bench.indexed_cases import SMOKE_DRAWS
from chord_jit.bench.layers import Layer
from chord_jit.bench.measure import Bench
from chord_jit.bench.timing import WriteFlush
from chord_jit.bench.whole_cases import WholeCase, WholeLayer
from chord_jit.routing.indexed import align_blocks

TOP_K, EXPERTS, HIDDEN = 8, 48, 1000
#: One launch of one CTA, the most that it takes, and several tiles.
TOKENS = (1, 20, 64, 65, 700)
GATE_UP, DOWN = Layer("small_gate_up", 16, 512, 1024, True, False, "test"), Layer("small_down", 16, 1024, 256, False, True, "test")
CASE = WholeCase(WholeLayer("small_layer", GATE_UP, DOWN), SMOKE_DRAWS[0])


@pytest.fixture
def ids(request, gpu):
    pytest.importorskip("triton")
    scores = torch.rand(request.param, EXPERTS, device=gpu)
    return scores.topk(TOP_K).indices.int().contiguous()


@pytest.mark.parametrize("block_m", [8, 56, 128])
@pytest.mark.parametrize("ids", TOKENS, indirect=True)
def test_aligned_rows_are_those_of_our_builder(ids, block_m):
    rows, wanted = stand_ins.Rows(ids, EXPERTS, block_m), align_blocks(ids, block_m, EXPERTS)
    rows.align()
    used = int(wanted.num_tokens_padded)
    assert int(rows.padded) == used
    assert torch.equal(rows.sorted_ids[:used], wanted.sorted_ids[:used])
    assert torch.equal(rows.expert_ids[: used // block_m], wanted.expert_ids[: used // block_m])


@pytest.mark.parametrize("ids", TOKENS, indirect=True)
def test_grouped_rows_lie_together_and_combine_again(ids):
    rows = stand_ins.Rows(ids, EXPERTS, 1)
    rows.group()
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
    assert rows.offsets.tolist() == [0, *counts.cumsum(0).tolist()]
    order = torch.argsort(ids.flatten(), stable=True)
    assert torch.equal(rows.places.flatten()[order].long(), torch.arange(ids.numel(), device=ids.device))
    values = torch.randn(ids.numel(), HIDDEN, device=ids.device).bfloat16()
    weights = torch.rand(ids.shape, device=ids.device)
    out, placed = (torch.full((len(ids), HIDDEN), float("nan"), device=ids.device, dtype=torch.bfloat16) for _ in range(2))
    stand_ins.combine(values, weights, out)
    moved = torch.empty_like(values)
    moved[rows.places.flatten().long()] = values
    stand_ins.combine(moved, weights, placed, rows.places)
    wanted = (values.double().unflatten(0, ids.shape) * weights.double().unsqueeze(-1)).sum(1)
    assert float((out.double() - wanted).norm() / wanted.norm()) < 2.5e-3
    assert torch.equal(out, placed)


def test_a_small_layer_is_checked_and_timed(gpu, seed):
    bench = Bench(device.facts(gpu.index), torch.Generator(gpu).manual_seed(seed), WriteFlush(gpu), None, rounds=5, energy=False)
    weights = whole.weights([CASE], bench.generator, [], peer=False)
    row = whole.measure(bench, CASE, weights)
    assert set(row["variants"]) == {"ours", "gate_up", "down", "route", "combine"}
    assert all(variant["us"] and variant.get("error", 0.0) < 5e-3 for variant in row["variants"].values()), row["variants"]
    assert row["host_us"]["median"] > 0
