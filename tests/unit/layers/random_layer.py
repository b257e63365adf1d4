"""A layer of random weights, about as large as its activations."""

from __future__ import annotations

import torch

from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.w4a16 import pack_w4a16


def random_layer(experts: int, hidden: int, neurons: int, *, interleave: bool = True, device: str = "cpu") -> MoEWeights:
    """Codes of all 16 values, scales within a factor of two, the sums' spread near one."""

    def random(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.randint(0, 16, (experts, n, k), dtype=torch.uint8, device=device)
        scale = (torch.rand(experts, n, k // 32, device=device) + 1) / (7 * k**0.5)
        return codes, scale.bfloat16()

    return MoEWeights(pack_w4a16(*random(2 * neurons, hidden), interleave=interleave), pack_w4a16(*random(hidden, neurons)))
