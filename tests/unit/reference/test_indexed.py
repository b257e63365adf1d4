"""The indexed reference against loops over Python floats, and what it must leave alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import pack_w4a16
from chord_jit.reference.indexed import indexed
from chord_jit.routing.indexed import IndexedRouting, align_blocks
from tests.unit.reference.hand import EXPERTS, N, by_hand, make, silu_mul

BLOCK = 8


def route(sorted_ids, expert_ids, padded, rows, top_k=1):
    """Routing of a host's own buffers for ``rows`` rows of activations."""
    buffers = (torch.as_tensor(values, dtype=torch.int32) for values in (sorted_ids, expert_ids, padded))
    return IndexedRouting(*buffers, top_k, BLOCK, rows * top_k, EXPERTS)


@pytest.mark.parametrize("interleave", [False, True])
def test_every_routed_row(seed, interleave):
    x, codes, scale, packed = make(seed, 5, interleave=interleave)
    topk_ids = torch.tensor([[0, 2], [2, -1], [2, 0], [0, 2], [-1, 2]])  # experts 1 and 3 get nothing
    routing = align_blocks(topk_ids, BLOCK, EXPERTS)
    got = indexed(x, packed, routing)
    assert got.dtype == torch.float64
    assert got.shape == (10, N)
    for row, expert in enumerate(topk_ids.flatten().tolist()):
        if expert < 0:
            assert got[row].isnan().all()
        else:
            assert got[row].tolist() == by_hand(x[row // 2], codes, scale, expert)


@pytest.mark.parametrize("interleave", [False, True])
def test_swiglu_and_routing_weights(seed, interleave):
    x, codes, scale, packed = make(seed, 3, interleave=interleave)
    topk_ids = torch.tensor([[1, 3], [3, 0], [0, 1]])
    weights = torch.rand(3, 2) + 0.25
    routing = align_blocks(topk_ids, BLOCK, EXPERTS)
    got = indexed(x, packed, routing, swiglu=True, topk_weights=weights)
    flat = indexed(x, packed, routing, swiglu=True, topk_weights=weights.flatten())
    assert torch.equal(got, flat)
    for row, expert in enumerate(topk_ids.flatten().tolist()):
        want = [value * weights.flatten()[row].item() for value in silu_mul(by_hand(x[row // 2], codes, scale, expert))]
        assert got[row].tolist() == pytest.approx(want, rel=1e-13, abs=1e-300)


def test_the_bf16_variant_rounds_weights_only(seed):
    x, codes, scale, _ = make(seed, 2)
    scale = (torch.rand(scale.shape) + 0.5).bfloat16()
    packed = pack_w4a16(codes, scale)
    routing = route([0, 1] + [2] * 6, [3], 8, 2)
    got = indexed(x, packed, routing, variant="bf16")
    weight = ((codes[3].float() - 8) * scale[3].float().repeat_interleave(32, dim=1)).bfloat16()
    assert torch.allclose(got, x.double() @ weight.double().T, rtol=1e-13, atol=0)
    assert not torch.allclose(got, indexed(x, packed, routing), rtol=1e-6)


def test_what_no_valid_block_names_is_neither_read_nor_written(seed):
    x, codes, scale, packed = make(seed, 4)
    x[2:] = float("nan")  # rows 2 and 3 appear in no valid block
    garbage = [-5, 3, 2**31 - 1, -(2**31)]
    routing = route([1, 4, 4, 9, 4, 4, 4, 4] + [0] + [77] * 7 + garbage, [3, 1, -99, 1 << 30], [16], 4)
    out = torch.full((4, N), 7.0, dtype=torch.float64)
    got = indexed(x, packed, routing, out=out)
    assert got is out
    assert out[1].tolist() == by_hand(x[1], codes, scale, 3)
    assert out[0].tolist() == by_hand(x[0], codes, scale, 1)
    assert (out[2:] == 7.0).all()


def test_a_block_that_the_capacity_cuts(seed):
    x, codes, scale, packed = make(seed, 2)
    got = indexed(x, packed, route([0] + [2] * 7 + [1], [0, 2], [16], 2))
    assert got[0].tolist() == by_hand(x[0], codes, scale, 0)
    assert got[1].tolist() == by_hand(x[1], codes, scale, 2)


def test_nothing_to_do(seed):
    x, _, _, packed = make(seed, 2)
    assert indexed(x[:0], packed, route([], [], [0], 0, top_k=2)).shape == (0, N)
    assert indexed(x, packed, route([], [], [0], 2, top_k=2), swiglu=True).isnan().all()


ONE = [0] + [9] * 7
REFUSED = {
    "K of x": ({"x": torch.ones(2, 32)}, "of the weight's K"),
    "vector x": ({"x": torch.ones(64)}, "must be"),
    "out dtype": ({"out": torch.ones(2, N)}, "float64"),
    "out shape": ({"out": torch.ones(2, N // 2, dtype=torch.float64)}, r"wanted=\(2, 24\)"),
    "routing weights": ({"topk_weights": torch.ones(3)}, "values=3, rows=2"),
    "expert": ({"routing": route(ONE, [4], [8], 2)}, "expert=4, limit=4"),
    "expert -1": ({"routing": route(ONE, [-1], [8], 2)}, "expert=-1"),
    "negative id": ({"routing": route([-3] + [9] * 7, [0], [8], 2)}, "id=-3, limit=2"),
    "variant": ({"variant": "fp8"}, "variant=fp8"),
}


@pytest.mark.parametrize("changes, says", REFUSED.values(), ids=REFUSED)
def test_refused(seed, changes, says):
    x, _, _, packed = make(seed, 2)
    arguments = {"x": x, "weight": packed, "routing": route(ONE, [0], [8], 2)}
    with pytest.raises(InputError, match=says):
        indexed(**{**arguments, **changes})


def test_another_layout_is_refused(seed):
    x, _, _, packed = make(seed, 2)
    other = dataclasses.replace(packed, layout_version=2)
    with pytest.raises(InputError, match="layout_version=2"):
        indexed(x, other, route(ONE, [0], [8], 2))


def test_a_weight_of_another_call_is_refused(seed):
    x, _, _, packed = make(seed, 2)
    with pytest.raises(InputError, match=r"packed for contiguous\(...\) alone"):
        indexed(x, dataclasses.replace(packed, mode="contiguous"), route(ONE, [0], [8], 2))
