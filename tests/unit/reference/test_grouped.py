"""The grouped references against loops over Python floats, and what they must leave alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.w4a16 import pack_w4a16
from chord_jit.reference.grouped import contiguous, masked
from chord_jit.routing.grouped import blocks_of, offsets_of
from tests.unit.reference.hand import EXPERTS, K, N, by_hand, make, silu_mul

COUNTS = torch.tensor([2, 0, 3, 1])
MAX_M = 4


def blocks(x, extra=128):
    """Rows of ``x`` spread over padded blocks, poison on the padding, and the owner of each row."""
    m_indices = blocks_of(COUNTS, 3 * 128 + extra)
    spread = torch.full((m_indices.numel(), K), float("nan")).bfloat16()
    spread[m_indices >= 0] = x
    return spread, m_indices, m_indices.tolist()


def packed_rows(x):
    """Rows of ``x`` without padding, poison behind them, and the owner of each row."""
    owners = torch.repeat_interleave(torch.arange(EXPERTS), COUNTS).tolist()
    return torch.cat((x, torch.full((3, K), float("nan")).bfloat16())), offsets_of(COUNTS), owners + [-1] * 3


def slots(x):
    """Rows of ``x`` at the front of each expert's slots, poison behind them, and the owner of each slot."""
    inside = torch.arange(MAX_M) < COUNTS[:, None]
    spread = torch.full((EXPERTS, MAX_M, K), float("nan")).bfloat16()
    spread[inside] = x
    return spread, COUNTS.int(), torch.where(inside, torch.arange(EXPERTS)[:, None], -1).flatten().tolist()


def by_offsets(x, weight, offsets, **options):
    return contiguous(x, weight, offsets=offsets, **options)


def by_counts(x, weight, masked_m, **options):
    return masked(x, weight, masked_m, 7, **options)


LAYOUTS = {"blocks": (blocks, contiguous), "offsets": (packed_rows, by_offsets), "masked": (slots, by_counts)}


@pytest.mark.parametrize("spread, reference", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("interleave, swiglu", [(False, False), (True, False), (True, True)])
def test_every_row_and_nobodys_rows(seed, spread, reference, interleave, swiglu):
    rows, codes, scale, weight = make(seed, int(COUNTS.sum()), interleave=interleave)
    x, layout, owners = spread(rows)
    got = reference(x, weight, layout, swiglu=swiglu)
    x = x.view(-1, K)
    assert got.dtype == torch.float64 and got.shape == (x.shape[0], N // 2 if swiglu else N)
    assert [owner >= 0 for owner in owners] == (~got.isnan().any(1)).tolist()
    for row, owner in enumerate(owners):
        if owner >= 0:
            want = by_hand(x[row], codes, scale, owner)
            assert got[row].tolist() == (pytest.approx(silu_mul(want), rel=1e-13, abs=1e-300) if swiglu else want)
    assert sum(owner >= 0 for owner in owners) == 6


@pytest.mark.parametrize("spread, reference", LAYOUTS.values(), ids=LAYOUTS)
def test_out_keeps_the_rows_that_are_nobodys(seed, spread, reference):
    rows, _, _, weight = make(seed, int(COUNTS.sum()))
    x, layout, owners = spread(rows)
    out = torch.full((len(owners), N), 7.0, dtype=torch.float64)
    assert reference(x, weight, layout, out=out) is out
    nobody = torch.tensor(owners) < 0
    assert (out[nobody] == 7.0).all() and torch.equal(out[~nobody], reference(x, weight, layout)[~nobody])


@pytest.mark.parametrize("spread, reference", LAYOUTS.values(), ids=LAYOUTS)
def test_the_bf16_variant_rounds_weights_only(seed, spread, reference):
    rows, codes, scale, _ = make(seed, int(COUNTS.sum()))
    scale = (torch.rand(scale.shape) + 0.5).bfloat16()
    weight = pack_w4a16(codes, scale)
    x, layout, owners = spread(rows)
    got = reference(x, weight, layout, variant="bf16")
    rounded = ((codes[2].float() - 8) * scale[2].float().repeat_interleave(32, dim=1)).bfloat16().double()
    here = torch.tensor(owners) == 2
    assert torch.allclose(got[here], x.view(-1, K)[here].double() @ rounded.T, rtol=1e-13, atol=0)
    assert not torch.allclose(got[here], reference(x, weight, layout)[here], rtol=1e-6)


def test_flat_and_sliced_activations_are_the_same_call(seed):
    rows, _, _, weight = make(seed, int(COUNTS.sum()))
    x, counts, _ = slots(rows)
    sliced, flat = (masked(form, weight, counts, 1) for form in (x, x.view(-1, K)))
    assert torch.equal(sliced.nan_to_num(), flat.nan_to_num())


def test_nothing_to_do(seed):
    _, _, _, weight = make(seed, 1)
    none = torch.zeros(EXPERTS, dtype=torch.int32)
    empty = torch.empty(0, K).bfloat16()
    assert contiguous(empty, weight, blocks_of(none)).shape == (0, N)
    assert contiguous(empty, weight, offsets=offsets_of(none)).shape == (0, N)
    assert masked(empty, weight, none, 1).shape == (0, N)
    assert masked(torch.ones(EXPERTS, 2, K).bfloat16(), weight, none, 1).isnan().all()


X = torch.ones(8, K)
REFUSED = {
    "no layout": (InputTypeError, "exactly one", lambda w: contiguous(X, w)),
    "two layouts": (InputTypeError, "exactly one", lambda w: contiguous(X, w, blocks_of(COUNTS), offsets=offsets_of(COUNTS))),
    "K of x": (InputError, "of the weight's K", lambda w: contiguous(torch.ones(8, 32), w, offsets=offsets_of(COUNTS))),
    "x of other experts": (InputError, "of the weight's K", lambda w: masked(torch.ones(2, 4, K), w, COUNTS.int(), 1)),
    "out": (InputError, "float64", lambda w: contiguous(X, w, offsets=offsets_of(COUNTS), out=torch.ones(8, N))),
    "rows": (InputError, "multiple of 128", lambda w: contiguous(X, w, torch.zeros(8, dtype=torch.int32))),
    "id": (InputError, "value=4, experts=4", lambda w: contiguous(X.repeat(16, 1), w, torch.full((128,), 4, dtype=torch.int32))),
    "offsets": (InputError, "entry=4, value=9, rows=8", lambda w: contiguous(X, w, offsets=torch.tensor([0, 0, 0, 0, 9]))),
    "counts": (InputError, "value=3, max_m=2", lambda w: masked(X, w, COUNTS.int(), 1)),
    "expected_m": (InputError, "1 or more", lambda w: masked(X, w, COUNTS.int(), 0)),
    "variant": (InputError, "variant=fp8", lambda w: contiguous(X, w, offsets=offsets_of(COUNTS), variant="fp8")),
    "layout version": (
        InputError, "layout_version=2",
        lambda w: contiguous(X, dataclasses.replace(w, layout_version=2), offsets=offsets_of(COUNTS)),
    ),
    "mode of masked": (
        InputError, r"packed for masked\(...\) alone",
        lambda w: contiguous(X, dataclasses.replace(w, mode="masked"), offsets=offsets_of(COUNTS)),
    ),
    "mode of contiguous": (
        InputError, r"packed for contiguous\(...\) alone",
        lambda w: masked(X, dataclasses.replace(w, mode="contiguous"), torch.ones(EXPERTS, dtype=torch.int32), 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("error, says, ask", REFUSED.values(), ids=REFUSED)
def test_refused(seed, error, says, ask):
    _, _, _, weight = make(seed, 1)
    with pytest.raises(error, match=says):
        ask(weight)
