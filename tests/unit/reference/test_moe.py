"""The reference of a MoE layer: numbers worked out by hand, then loops over Python floats."""

from __future__ import annotations

import math

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.w4a16 import pack_w4a16
from chord_jit.reference.moe import moe

EXPERTS, HIDDEN, NEURONS, TOP_K = 3, 64, 32, 2


def weights_by(seed, *, interleave=True):
    """Codes and scales of both weights, and them packed; scales are powers of two."""
    generator = torch.Generator().manual_seed(seed)
    sides = []
    for n, k in ((2 * NEURONS, HIDDEN), (HIDDEN, NEURONS)):
        codes = torch.randint(0, 16, (EXPERTS, n, k), generator=generator, dtype=torch.uint8)
        scale = torch.pow(2.0, torch.randint(-5, -2, (EXPERTS, n, k // 32), generator=generator)).bfloat16()
        sides.append((codes, scale))
    return sides, MoEWeights(pack_w4a16(*sides[0], interleave=interleave), pack_w4a16(*sides[1]))


def matrix_times(codes, scale, row):
    """One expert's [N, K] times a row, as a list of floats."""
    codes, scale = codes.tolist(), scale.tolist()
    return [math.fsum((code - 8) * s[k // 32] * row[k] for k, code in enumerate(line)) for line, s in zip(codes, scale, strict=True)]


def expert_of(row, sides, expert):
    """down(silu(gate) * up) of one row and one expert."""
    (codes, scale), (down, down_scale) = sides
    both = matrix_times(codes[expert], scale[expert], row)
    middle = [gate / (1 + math.exp(-gate)) * up for gate, up in zip(both[:NEURONS], both[NEURONS:], strict=True)]
    return matrix_times(down[expert], down_scale[expert], middle)


def by_hand(x, sides, topk_ids, topk_weights, expert_map=None, shared=None):
    rows = []
    for token, row in enumerate(x.tolist()):
        total = [0.0] * HIDDEN if shared is None else shared[token].tolist()
        for expert, weight in zip(topk_ids[token].tolist(), topk_weights[token].tolist(), strict=True):
            if expert_map is not None:
                expert = expert_map[expert] if 0 <= expert < len(expert_map) else -1
            if 0 <= expert < EXPERTS:
                total = [a + weight * b for a, b in zip(total, expert_of(row, sides, expert), strict=True)]
        rows.append(total)
    return torch.tensor(rows, dtype=torch.float64)


def draw(seed, tokens):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    return x, torch.rand(tokens, TOP_K, generator=generator) + 0.1


def near(got, want):
    assert got.dtype == torch.float64 and got.shape == want.shape
    assert torch.allclose(got, want, rtol=1e-11, atol=1e-13)


def test_numbers_of_one_neuron():
    """x = e0. Expert 0: gate 2, up 3 in neuron 0, and down takes it to output 5 times 4; expert 1 the same with gate -2."""
    codes, down = torch.full((2, 2 * NEURONS, HIDDEN), 8, dtype=torch.uint8), torch.full((2, HIDDEN, NEURONS), 8, dtype=torch.uint8)
    codes[0, 0, 0], codes[1, 0, 0], codes[:, NEURONS, 0], down[:, 5, 0] = 8 + 2, 8 - 2, 8 + 3, 8 + 4
    ones = [torch.ones(2, n, k // 32).bfloat16() for n, k in ((2 * NEURONS, HIDDEN), (HIDDEN, NEURONS))]
    weights = MoEWeights(pack_w4a16(codes, ones[0], interleave=True), pack_w4a16(down, ones[1]))
    x = torch.zeros(3, HIDDEN)
    x[:, 0] = 1
    # silu(2) = 1.7615941559557649, silu(-2) = -0.2384058440442351: times 3 times 4.
    first, second = 21.139129871469179, -2.8608701285308212
    got = moe(x, weights, torch.tensor([[0, 1], [1, -1], [-1, -1]]), torch.tensor([[1.0, 0.5], [0.25, 1.0], [1.0, 1.0]]))
    assert got[:, 5].tolist() == pytest.approx([first + second / 2, second / 4, 0.0], rel=1e-14)
    got[:, 5] = 0
    assert not got.any()


@pytest.mark.parametrize("interleave", [False, True])
def test_every_token_against_python(seed, interleave):
    """-1, an expert named twice, ids out of range: each counts as it must, whichever integers carry them."""
    sides, weights = weights_by(seed, interleave=interleave)
    x, topk_weights = draw(seed, 6)
    topk_ids = torch.tensor([[0, 2], [2, 2], [-1, 1], [-1, -1], [3, 0], [-7, 2**31 - 1]])
    got = moe(x, weights, topk_ids, topk_weights)
    near(got, by_hand(x, sides, topk_ids, topk_weights))
    assert not got[3].any() and not got[5].any() and bool(got[[0, 1, 2, 4]].any(1).all())
    assert torch.equal(moe(x, weights, topk_ids.int(), topk_weights), got)


def test_a_map_names_the_local_experts(seed):
    sides, weights = weights_by(seed)
    x, topk_weights = draw(seed, 5)
    topk_ids, expert_map = torch.tensor([[0, 5], [1, 3], [4, 2], [-1, 6], [2, 5]]), [-1, 2, 0, -1, -1, 1]
    got = moe(x, weights, topk_ids, topk_weights, expert_map=torch.tensor(expert_map, dtype=torch.int32))
    near(got, by_hand(x, sides, topk_ids, topk_weights, expert_map))
    assert not got[3].any()
    nobody = torch.full((6,), -1, dtype=torch.int32)
    assert not moe(x, weights, topk_ids, topk_weights, expert_map=nobody).any()


def test_the_shared_output_is_added_and_not_written(seed):
    sides, weights = weights_by(seed)
    x, topk_weights = draw(seed, 2)
    shared, topk_ids = torch.randn(2, HIDDEN).bfloat16(), torch.tensor([[0, 1], [-1, -1]])
    kept = shared.clone()
    got = moe(x, weights, topk_ids, topk_weights, shared=shared)
    near(got, by_hand(x, sides, topk_ids, topk_weights, shared=shared))
    assert torch.equal(got[1], shared[1].double()) and torch.equal(shared, kept)


def test_nan_stays_with_its_token_and_unread_weights_are_not_read(seed):
    sides, weights = weights_by(seed)
    x, topk_weights = draw(seed, 4)
    topk_ids = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, -1]])
    want = by_hand(x, sides, topk_ids, topk_weights)
    x[1], x[3] = float("nan"), float("nan")
    topk_weights[2, 1] = float("nan")
    got = moe(x, weights, topk_ids, topk_weights)
    assert got[1].isnan().all()
    near(got[[0, 2, 3]], want[[0, 2, 3]])


def test_no_tokens(seed):
    _, weights = weights_by(seed)
    assert moe(torch.empty(0, HIDDEN), weights, torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2)).shape == (0, HIDDEN)


X, IDS, ROUTED = torch.ones(2, HIDDEN), torch.zeros(2, TOP_K, dtype=torch.int64), torch.ones(2, TOP_K)
REFUSED = {
    "K of x": (InputError, "of the weight's K", lambda w: moe(torch.ones(2, 32), w, IDS, ROUTED)),
    "float ids": (InputTypeError, "must be integers", lambda w: moe(X, w, ROUTED, ROUTED)),
    "integer weights": (InputTypeError, "topk_weights=torch.int64", lambda w: moe(X, w, IDS, IDS)),
    "tokens of the ids": (InputError, r"topk_ids=\[1, 2\]", lambda w: moe(X, w, IDS[:1], ROUTED[:1])),
    "flat ids": (InputError, r"\[tokens, top_k\]", lambda w: moe(X, w, IDS[:, 0], ROUTED[:, 0])),
    "columns of the weights": (InputError, r"topk_weights=\[2, 1\]", lambda w: moe(X, w, IDS, ROUTED[:, :1])),
    "shared": (InputError, "shape of x", lambda w: moe(X, w, IDS, ROUTED, shared=torch.ones(2, 32))),
    "another layer's down": (InputError, "one layer", lambda w: moe(X, MoEWeights(w.gate_up, w.gate_up), IDS, ROUTED)),
}


@pytest.mark.parametrize("error, says, ask", REFUSED.values(), ids=REFUSED)
def test_refused(seed, error, says, ask):
    with pytest.raises(error, match=says):
        ask(weights_by(seed)[1])
