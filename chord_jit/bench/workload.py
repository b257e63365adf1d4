"""Fresh values for a case: weights of a layer in every packing that is timed, and the inputs of one case."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.bench import sides
from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.layers import Layer
from chord_jit.bench.sides import Inputs
from chord_jit.formats.w4a16 import GROUP, PackedW4A16, pack_w4a16

_SPREAD = 3.3
_CODES_PER_WORD = 8
_STEP_CODES = 1 << 28


@dataclass(frozen=True, eq=False)
class Weights:
    """One layer's values. ``words`` (int32 [E, N, K/8], low nibble first) and ``scale`` (BF16 [E, N, K/32]) feed the peer.

    ``plain``: gate rows then up rows, as any other weight. ``fused``: the same values interleaved, for gated layers.
    """

    layer: Layer
    words: torch.Tensor
    scale: torch.Tensor
    plain: PackedW4A16
    fused: PackedW4A16 | None


def weights(layer: Layer, generator: torch.Generator) -> Weights:
    """Codes ``clamp(round(3.3 normal)) + 8`` with all 16 values, scales of a size that keeps outputs near 1."""
    words = torch.empty(layer.experts, layer.n, layer.k // _CODES_PER_WORD, dtype=torch.int32, device=generator.device)
    step = max(1, _STEP_CODES // (layer.n * layer.k))
    for first in range(0, layer.experts, step):
        part = words[first : first + step]
        part.copy_(_random_words(part.shape, generator))
    shape = (layer.experts, layer.n, layer.k // GROUP)
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    scale = ((uniform + 0.5) / (_SPREAD * layer.k**0.5)).to(torch.bfloat16)
    fused = pack_w4a16(words, scale, interleave=True) if layer.gated else None
    return Weights(layer, words, scale, pack_w4a16(words, scale), fused)


def _random_words(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn((*shape, _CODES_PER_WORD), generator=generator, device=generator.device)
    codes = normal.mul_(_SPREAD).round_().add_(8).clamp_(0, 15).to(torch.int32)
    words = torch.zeros(shape, dtype=torch.int32, device=generator.device)
    for position in range(_CODES_PER_WORD):
        words |= codes[..., position] << (4 * position)
    return words


def inputs(case: AnyCase, generator: torch.Generator) -> Inputs:
    """Normal activations over the case's fixed rows."""
    return sides.of(case).inputs(case, generator)
