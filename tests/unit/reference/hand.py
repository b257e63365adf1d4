"""Data whose sums are exact, and the slow loops over Python floats that references are compared with."""

from __future__ import annotations

import math

import torch

from chord_jit.formats.w4a16 import PackedW4A16, pack_w4a16

EXPERTS, N, K = 4, 24, 64


def make(seed: int, tokens: int, *, interleave: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, PackedW4A16]:
    """Activations, codes, scales and the packed weight; small integers and powers of two, so that sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (EXPERTS, N, K), generator=generator, dtype=torch.uint8)
    scale = torch.pow(2.0, torch.randint(-3, 2, (EXPERTS, N, K // 32), generator=generator)).bfloat16()
    x = torch.randint(-8, 9, (tokens, K), generator=generator).bfloat16()
    return x, codes, scale, pack_w4a16(codes, scale, interleave=interleave)


def by_hand(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, expert: int) -> list[float]:
    """One row times one expert, as a list of N floats; exact for the data of ``make``."""
    rows = []
    for n in range(N):
        terms = ((int(codes[expert, n, k]) - 8) * scale[expert, n, k // 32].item() * x[k].item() for k in range(K))
        rows.append(math.fsum(terms))
    return rows


def silu_mul(row: list[float]) -> list[float]:
    """silu(gate) * up of a row that holds gate, then up."""
    return [gate / (1 + math.exp(-gate)) * up for gate, up in zip(row[: N // 2], row[N // 2 :], strict=True)]
