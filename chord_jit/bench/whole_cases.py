"""Whole-layer cases: from hidden states and routed ids to the combined output of one MoE layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chord_jit.bench.indexed_cases import EP8_DRAWS, EP8_PREFILL_DRAWS, Draw, DrawnCase
from chord_jit.bench.layers import EP8_DOWN, EP8_GATE_UP, Layer


@dataclass(frozen=True)
class WholeLayer:
    """Both projections of a MoE layer as one GPU holds them; other fields as those of ``Layer``."""

    name: str
    gate_up: Layer
    down: Layer

    @property
    def experts(self) -> int:
        return self.gate_up.experts

    @property
    def hidden(self) -> int:
        return self.gate_up.k

    @property
    def expert_bytes(self) -> int:
        return self.gate_up.expert_bytes + self.down.expert_bytes

    @property
    def source(self) -> str:
        return self.gate_up.source


@dataclass(frozen=True)
class WholeCase(DrawnCase):
    """A layer called with one routing draw, all picks of a token on local experts."""

    layer: WholeLayer
    draw: Draw

    family: ClassVar[str] = "layer"
    kind: ClassVar[str] = "layer"
    layout: ClassVar[str] = "layer"
    reads: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False

    @property
    def flops(self) -> int:
        """Of both projections."""
        return sum(2 * self.rows * layer.n * layer.k for layer in (self.layer.gate_up, self.layer.down))


EP8_LAYER = WholeLayer("ep8_layer", EP8_GATE_UP, EP8_DOWN)
_DECODE, _PREFILL = (1, 8, 20, 50), (128, 512, 2048)

#: The draws of the decode and prefill sets.
WHOLE_SETS: dict[str, tuple[WholeCase, ...]] = {
    "layer": tuple(
        WholeCase(EP8_LAYER, draw)
        for draws, tokens in ((EP8_DRAWS, _DECODE), (EP8_PREFILL_DRAWS, _PREFILL))
        for draw in draws
        if draw.tokens in tokens
    ),
}
