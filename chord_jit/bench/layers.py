"""The layers that are timed, with the provenance of their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.formats.w4a16 import BLOCK_BYTES, PANEL, UNIT_K


@dataclass(frozen=True)
class Layer:
    """One projection of a MoE layer as one GPU holds it: ``experts`` matrices of ``n`` outputs by ``k`` inputs.

    ``gated``: its outputs are gate and up, so SwiGLU can be fused. ``routed_input``: its input rows are routed rows
    already (down), so ``top_k`` of an indexed call is 1. ``source``: where the shape comes from.
    """

    name: str
    experts: int
    n: int
    k: int
    gated: bool
    routed_input: bool
    source: str

    @property
    def expert_bytes(self) -> int:
        """Packed bytes of one expert: codes and scales, padding included."""
        return -(-self.n // PANEL) * -(-self.k // UNIT_K) * BLOCK_BYTES


_KIMI = "Kimi K2: hidden 7168, expert intermediate 2048, 384 experts, top 8"


def _gate_up(ranks: int) -> Layer:
    return Layer(f"ep{ranks}_gate_up", 384 // ranks, 4096, 7168, True, False, f"{_KIMI}; expert parallel over {ranks} GPUs")


def _down(ranks: int) -> Layer:
    return Layer(f"ep{ranks}_down", 384 // ranks, 7168, 2048, False, True, f"{_KIMI}; expert parallel over {ranks} GPUs")


EP8_GATE_UP, EP8_DOWN = _gate_up(8), _down(8)
EP16_GATE_UP, EP16_DOWN = _gate_up(16), _down(16)
EP32_GATE_UP, EP32_DOWN = _gate_up(32), _down(32)
TP8_GATE_UP = Layer("tp8_gate_up", 384, 512, 7168, True, False, f"{_KIMI}; tensor parallel over 8 GPUs")
TP8_DOWN = Layer("tp8_down", 384, 7168, 256, False, True, f"{_KIMI}; tensor parallel over 8 GPUs")
SMOKE = Layer("smoke_gate_up", 16, 512, 1024, True, False, "small enough for a quick run; no deployment has this shape")
