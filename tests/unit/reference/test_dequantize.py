"""FP64 weights: exact products, and the one rounding of the BF16 variant, against arithmetic on fractions."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch

from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import pack_w4a16
from chord_jit.reference.w4a16 import dequantize

N, K = 24, 64


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (2, N, K), generator=generator, dtype=torch.uint8)
    scale = (torch.randn(2, N, K // 32, generator=generator) * torch.tensor([1.0, 1e-30])).bfloat16()
    return codes, scale


def to_bf16(value: Fraction) -> Fraction:
    """Nearest BF16 (8 significant bits), ties to even; normal range."""
    if value == 0:
        return value
    exponent = 0
    while abs(value) >= 256 * Fraction(2) ** exponent:
        exponent += 1
    while abs(value) < 128 * Fraction(2) ** exponent:
        exponent -= 1
    return round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("expert", [0, 1])
def test_products_are_exact(seed, interleave, expert):
    codes, scale = draw(seed)
    weight = dequantize(pack_w4a16(codes, scale, interleave=interleave), expert)
    rounded = dequantize(pack_w4a16(codes, scale, interleave=interleave), expert, variant="bf16")
    assert weight.dtype == rounded.dtype == torch.float64
    assert weight.shape == rounded.shape == (N, K)
    changed = 0
    for n in range(N):
        for k in range(K):
            want = (int(codes[expert, n, k]) - 8) * Fraction(scale[expert, n, k // 32].item())
            assert Fraction(weight[n, k].item()) == want
            assert Fraction(rounded[n, k].item()) == to_bf16(want)
            changed += want != to_bf16(want)
    assert changed > N * K // 10, "the two variants must be told apart by this data"


def test_errors(seed):
    packed = pack_w4a16(*draw(seed))
    with pytest.raises(InputError, match="variant=half"):
        dequantize(packed, 0, variant="half")
    with pytest.raises(InputError, match="layout_version=2"):
        dequantize(dataclasses.replace(packed, layout_version=2), 0)
