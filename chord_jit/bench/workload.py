"""Fresh values for a case: weights of a layer in every packing that is timed, and the inputs of one draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.bench.cases import Case, Layer
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


@dataclass(frozen=True, eq=False)
class Inputs:
    """One call's inputs. ``x``: BF16 [rows, K]; ``topk_ids``: int32 [rows of x, top_k]; ``active``: experts with rows."""

    case: Case
    x: torch.Tensor
    topk_ids: torch.Tensor
    active: tuple[int, ...]

    def empty_output(self, features: int) -> torch.Tensor:
        """BF16 [routed rows, features], filled with NaN so that an unwritten element shows."""
        return torch.full((self.case.rows, features), float("nan"), dtype=torch.bfloat16, device=self.x.device)


def inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Normal activations over the case's fixed draw."""
    ids = torch.from_numpy(case.draw.topk_ids()).to(generator.device)
    if case.layer.routed_input:
        ids = ids.reshape(-1, 1)
    x = torch.randn(ids.shape[0], case.layer.k, generator=generator, device=generator.device).to(torch.bfloat16)
    active = case.draw.rows_per_expert().nonzero()[0].tolist()
    return Inputs(case, x, ids.contiguous(), tuple(active))
