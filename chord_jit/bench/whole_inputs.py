"""Values of a whole-layer case, and what they must give in FP64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chord_jit.bench.routed import REFERENCE_BLOCK, RoutedInputs
from chord_jit.bench.whole_cases import WholeCase
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.reference.indexed import indexed
from chord_jit.reference.moe import moe


@dataclass(frozen=True, eq=False)
class WholeInputs(RoutedInputs):
    """``x``: BF16 [tokens, hidden]. ``topk_ids``: local experts; ``topk_weights``: FP32 [tokens, top_k], each token's sum is 1."""

    case: WholeCase
    topk_weights: torch.Tensor

    @property
    def top_k(self) -> int:
        return self.topk_ids.shape[1]


def draw(case: WholeCase, generator: torch.Generator) -> WholeInputs:
    """Normal activations and softmax routing weights over the case's fixed routing."""
    ids = torch.from_numpy(case.draw.topk_ids()).to(generator.device)
    x = torch.randn(ids.shape[0], case.layer.hidden, generator=generator, device=generator.device).to(torch.bfloat16)
    scores = torch.randn(ids.shape, generator=generator, device=generator.device)
    return WholeInputs(case, x, ids.contiguous(), scores.softmax(-1))


@dataclass(frozen=True, eq=False)
class Exact:
    """FP64: the stages of the first layer, each from the rounded result of the one before it, and the outputs of all layers.

    ``wide``: gate and up, [rows, 2 * neurons]. ``inner``: after SwiGLU, [rows, neurons]. ``routed``: down of ``inner`` in BF16,
    [rows, hidden], without routing weights. ``outs``: [tokens, hidden] of each layer, nothing rounded in between.
    """

    wide: torch.Tensor
    inner: torch.Tensor
    routed: torch.Tensor
    outs: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, layers: Sequence[MoEWeights], inputs: WholeInputs) -> Exact:
        """By the references, on the device of the inputs."""
        routing = inputs.routing(REFERENCE_BLOCK)
        wide = indexed(inputs.x, layers[0].gate_up, routing)
        gate, up = wide.chunk(2, 1)
        inner = gate * torch.sigmoid(gate) * up
        routed = indexed(inner.bfloat16(), layers[0].down, routing.for_down())
        outs = tuple(moe(inputs.x, layer, inputs.topk_ids, inputs.topk_weights) for layer in layers)
        return cls(wide, inner, routed, outs)
