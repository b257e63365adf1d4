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


def matrices(hidden: int, neurons: int, interleave: bool) -> dict[str, tuple[int, int, bool]]:
    """N, K and whether rows are interleaved, by the names of ``MoEWeights``."""
    return {"gate_up": (2 * neurons, hidden, interleave), "down": (hidden, neurons, False)}


def allocate_layer(experts: int, hidden: int, neurons: int, interleave: bool, device: torch.device | str) -> MoEWeights:
    """Weights whose bytes are not written yet."""
    return MoEWeights(**{name: allocate(experts, *matrix, device) for name, matrix in matrices(hidden, neurons, interleave).items()})
