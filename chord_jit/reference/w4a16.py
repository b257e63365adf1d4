"""Dequantised W4A16 weights in FP64: what every kernel's error is measured against."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import GROUP, PackedW4A16, unpack_expert

VARIANTS = ("exact", "bf16")


def dequantize(packed: PackedW4A16, expert: int, *, variant: str = "exact") -> torch.Tensor:
    """One expert's weight, float64 [N, K] in logical order, on the device of ``packed``.

    ``variant``: ``exact`` is ``(code - 8) * scale`` without any rounding; ``bf16`` rounds that product once, to nearest
    even, to bfloat16 (where it exceeds BF16's range it becomes infinite). Raises ``InputError`` for another variant or
    layout version.
    """
    if variant not in VARIANTS:
        raise InputError("dequantise a W4A16 weight", "the variant must be known", {"variant": variant}, "use " + " or ".join(VARIANTS))
    codes, scale = unpack_expert(packed, expert)
    groups = codes.double().sub_(8).unflatten(-1, (-1, GROUP))
    weight = groups.mul_(scale.double().unsqueeze(-1)).flatten(-2)
    return weight if variant == "exact" else weight.bfloat16().double()
