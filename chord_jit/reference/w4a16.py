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


def multiply(x: torch.Tensor, packed: PackedW4A16, expert: int, *, swiglu: bool, variant: str) -> torch.Tensor:
    """Rows ``x`` [rows, K] times one expert's weight, float64 [rows, N]; with ``swiglu`` silu(gate) * up, [rows, N / 2]."""
    result = x.double() @ dequantize(packed, expert, variant=variant).T
    if not swiglu:
        return result
    gate, up = result.tensor_split(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def result_for(asked: str, x: torch.Tensor, shape: tuple[int, int], out: torch.Tensor | None) -> torch.Tensor:
    """``out``, checked to be float64 of ``shape``, or NaN of that shape where it is None. Raises ``InputError``."""
    if out is None:
        return x.new_full(shape, float("nan"), dtype=torch.float64)
    if out.dtype != torch.float64 or tuple(out.shape) != shape:
        raise InputError(
            asked, "out must be float64 of the result's shape", {"dtype": out.dtype, "shape": tuple(out.shape), "wanted": shape},
            "let the function allocate it",
        )
    return out


def check_x(asked: str, x: torch.Tensor, packed: PackedW4A16) -> None:
    """Refuse activations that are no [rows, K] of the weight's K on its device: ``InputError``."""
    if x.dim() != 2 or x.shape[1] != packed.k or x.device != packed.device:
        raise InputError(
            asked, "x must be [M, K] of the weight's K, on its device",
            {"x": tuple(x.shape), "K": packed.k, "devices": (str(x.device), str(packed.device))}, "pass the layer's own activations",
        )
