"""The packed weights of one MoE layer's local experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.formats.w4a16 import PackedW4A16, allocate


@dataclass(frozen=True)
class MoEWeights:
    """Packed weights of one layer's local experts. ``gate_up``: N = 2 x local neurons, K = hidden. ``down``: N = hidden,
    K = local neurons. The local neurons are moe_intermediate of them, or a share (tensor parallelism).
    """

    gate_up: PackedW4A16
    down: PackedW4A16


def allocate_layer(experts: int, hidden: int, neurons: int, interleave: bool, device: torch.device | str) -> MoEWeights:
    """Weights whose bytes are not written yet. On device ``meta`` they describe a layer and hold nothing."""
    return MoEWeights(
        gate_up=allocate(experts, 2 * neurons, hidden, interleave, device), down=allocate(experts, hidden, neurons, False, device)
    )
