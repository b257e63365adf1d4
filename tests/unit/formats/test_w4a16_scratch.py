"""How much memory packing takes beyond source and result: a part of one expert, whatever the number of experts."""

from __future__ import annotations

import pytest
import torch

from chord_jit.formats import w4a16
from chord_jit.formats.w4a16 import allocate, pack_w4a16, unpack_w4a16
from tests.unit.formats.live_bytes import LiveBytes
from tests.unit.formats.w4a16_figure import draw, words_of

N, K = 520, 1056
FORMS = {"words": words_of, "uint8": lambda codes: codes, "int64": lambda codes: codes.long()}


def test_the_measure_sees_what_is_held():
    with LiveBytes() as live:
        kept = torch.ones(1000, dtype=torch.uint8) + 1
        kept = kept[:10].clone()
        torch.zeros(500, dtype=torch.uint8)
    assert kept.sum() == 20
    assert 2000 <= live.peak <= 2100


def scratch(weight, scale, interleave):
    with LiveBytes() as live:
        packed = pack_w4a16(weight, scale, interleave=interleave)
    return live.peak - packed.nbytes


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_packing(seed, form, interleave):
    codes, scale = draw(seed, 6, N, K)
    weight = FORMS[form](codes)
    few, many = scratch(weight[:2], scale[:2], interleave), scratch(weight, scale, interleave)
    assert 0 < many < allocate(1, N, K, interleave, "cpu").nbytes, "at most the packed bytes of one expert"
    assert abs(many - few) < 1024, "the number of experts must not show"


def test_a_large_expert_is_packed_in_parts(seed, monkeypatch):
    codes, scale = draw(seed, 1, N, K)
    whole = scratch(codes, scale, False)
    monkeypatch.setattr(w4a16, "_CHUNK", 1)
    assert scratch(codes, scale, False) <= whole / 2, "one panel at once, not two"


def test_unpacking(seed):
    packed = pack_w4a16(*draw(seed, 6, N, K))
    with LiveBytes() as live:
        codes, scale = unpack_w4a16(packed)
    assert 0 < live.peak - codes.nbytes - scale.nbytes < 1.5 * N * K


def test_nothing_is_allocated_for_a_refused_source(seed):
    codes, scale = draw(seed, 6, N, K)
    codes[5, N - 1, K - 1] = 16
    with LiveBytes() as live, pytest.raises(ValueError, match="0..15"):
        pack_w4a16(codes, scale)
    assert live.peak < 3 * N * K
