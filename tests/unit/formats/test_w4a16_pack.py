"""Packing: every byte against the literal figure, the round trip over odd shapes, every form of the source."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chord_jit.formats import w4a16
from chord_jit.formats.w4a16 import allocate, pack_expert, pack_w4a16, unpack_expert, unpack_w4a16
from tests.unit.formats.w4a16_figure import draw, literal_pack, words_of

# experts, n, k, interleaved: a whole block, several panels and kblocks, padding of rows, of k, of both, half units
CASES = [
    (1, 128, 64, False),
    (2, 256, 128, False),
    (1, 136, 96, False),
    (1, 8, 32, False),
    (1, 128, 64, True),
    (2, 264, 160, True),
    (1, 24, 32, True),
    (1, 8, 64, True),
]


@pytest.mark.parametrize(("experts", "n", "k", "interleaved"), CASES)
def test_bytes_are_those_of_the_figure(experts, n, k, interleaved, seed):
    codes, scale = draw(seed, experts, n, k)
    packed = pack_w4a16(codes, scale, interleave=interleaved)
    bits = scale.view(torch.int16).to(torch.int32) & 0xFFFF
    for expert in range(experts):
        want = literal_pack(codes[expert].tolist(), bits[expert].tolist(), n, k, interleaved)
        assert packed.data[expert].flatten().numpy().tobytes() == want


def shapes():
    return st.tuples(st.integers(1, 3), st.integers(1, 45), st.integers(1, 9), st.booleans(), st.integers(0, 2**31 - 1))


@settings(max_examples=60)
@given(shapes())
def test_round_trip_is_exact(shape):
    experts, n, k, interleaved, seed = shape[0], shape[1] * 8, shape[2] * 32, shape[3], shape[4]
    codes, scale = draw(seed, experts, n, k)
    packed = pack_w4a16(codes, scale, interleave=interleaved)
    again, scale_again = unpack_w4a16(packed)
    assert torch.equal(again, codes)
    assert torch.equal(scale_again.view(torch.int16), scale.view(torch.int16))
    one, one_scale = unpack_expert(packed, experts - 1)
    assert torch.equal(one, codes[-1])
    assert torch.equal(one_scale, scale[-1])


@settings(max_examples=30)
@given(shapes())
def test_words_and_codes_give_equal_bytes(shape):
    experts, n, k, interleaved, seed = shape[0], shape[1] * 8, shape[2] * 32, shape[3], shape[4]
    codes, scale = draw(seed, experts, n, k)
    packed = pack_w4a16(codes, scale, interleave=interleaved)
    assert torch.equal(packed.data, pack_w4a16(words_of(codes), scale, interleave=interleaved).data)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64], ids=str
)
def test_every_integer_dtype_gives_equal_bytes(dtype, seed):
    codes, scale = draw(seed, 2, 40, 96)
    assert torch.equal(pack_w4a16(codes.to(dtype), scale).data, pack_w4a16(codes, scale).data)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [4, 12, 64, 68, 132])
def test_gate_and_up_separate_or_together(half, interleaved, seed):
    codes, scale = draw(seed, 2, 2 * half, 96)
    together = pack_w4a16(codes, scale, interleave=interleaved)
    separate = pack_w4a16(
        codes[:, :half], scale[:, :half], up=words_of(codes[:, half:]), up_scale=scale[:, half:], interleave=interleaved
    )
    assert torch.equal(separate.data, together.data)
    assert (separate.n, separate.interleaved) == (2 * half, interleaved)


def test_strided_sources_give_equal_bytes(seed):
    codes, scale = draw(seed, 3, 72, 128)
    want = pack_w4a16(codes, scale).data
    transposed = codes.transpose(1, 2).contiguous().transpose(1, 2)
    wide_scale = torch.stack([scale, -scale], dim=-1)[..., 0]
    every_other = words_of(codes).repeat_interleave(2, dim=0)[::2]
    assert not transposed.is_contiguous()
    assert not wide_scale.is_contiguous()
    assert torch.equal(pack_w4a16(transposed, wide_scale).data, want)
    assert torch.equal(pack_w4a16(every_other, wide_scale).data, want)


def test_chunks_do_not_show(monkeypatch, seed):
    codes, scale = draw(seed, 1, 520, 96)
    for interleaved in (False, True):
        want = pack_w4a16(codes, scale, interleave=interleaved)
        monkeypatch.setattr(w4a16, "_CHUNK", 1)
        small = pack_w4a16(codes, scale, interleave=interleaved)
        assert torch.equal(small.data, want.data)
        assert torch.equal(unpack_w4a16(small)[0], codes)
        monkeypatch.undo()


def test_expert_by_expert_gives_equal_bytes(seed):
    codes, scale = draw(seed, 4, 24, 64)
    want = pack_w4a16(codes, scale, interleave=True)
    packed = allocate(4, 24, 64, True, "cpu")
    for expert in (2, 0, 3, 1):
        here = slice(expert, expert + 1)
        pack_expert(packed, expert, codes[here, :12], scale[here, :12], up=codes[here, 12:], up_scale=scale[here, 12:])
    assert torch.equal(packed.data, want.data)


def test_facts_of_the_packed_weight(seed):
    codes, scale = draw(seed, 2, 264, 160)
    plain, pairs = pack_w4a16(codes, scale), pack_w4a16(codes, scale, interleave=True)
    for packed, panels in ((plain, 3), (pairs, 3)):
        assert (packed.experts, packed.n, packed.k, packed.layout_version) == (2, 264, 160, 1)
        assert (packed.panels, packed.kblocks) == (panels, 3)
        assert packed.data.shape == (2, panels, 3, 4608)
        assert packed.nbytes == 2 * panels * 3 * 4608
        assert packed.device == torch.device("cpu")
    assert len({plain, pairs, plain}) == 2
