"""What is timed: layers with their provenance, and one fixed routing draw per token count.

A draw is fixed so that the bytes of a case never change between runs; activations, codes and scales are drawn fresh.
Each seed is the first one, counting from 0, whose draw meets the wanted counts (``find_seed``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import BLOCK_BYTES, PANEL, UNIT_K

_MOST_SEEDS = 4096


@dataclass(frozen=True)
class Draw:
    """One routing draw: every token scores all local experts at random and takes its ``picks`` best.

    ``active``: experts with at least one row. ``busiest``: most rows of one expert. Both are consequences of ``seed``.
    """

    tokens: int
    experts: int
    seed: int
    active: int
    busiest: int
    picks: int = 8

    def topk_ids(self) -> np.ndarray:
        """The expert of each pick, int32 [tokens, picks]."""
        scores = np.random.Generator(np.random.PCG64(self.seed)).random((self.tokens, self.experts))
        return np.argsort(scores, axis=1, kind="stable")[:, : self.picks].astype(np.int32)

    def rows_per_expert(self) -> np.ndarray:
        """Rows of each expert, int64 [experts]."""
        return np.bincount(self.topk_ids().reshape(-1), minlength=self.experts)


def find_seed(tokens: int, experts: int, active: int, busiest: int | None = None, picks: int = 8) -> Draw:
    """The first draw with ``active`` active experts and at most ``busiest`` rows on one of them."""
    for seed in range(_MOST_SEEDS):
        counts = Draw(tokens, experts, seed, 0, 0, picks).rows_per_expert()
        if (counts > 0).sum() == active and (busiest is None or counts.max() <= busiest):
            return Draw(tokens, experts, seed, active, int(counts.max()), picks)
    raise InputError(
        "find a routing draw", f"some seed below {_MOST_SEEDS} must meet the counts",
        {"tokens": tokens, "experts": experts, "active": active, "busiest": busiest}, "ask for counts that a random draw can meet",
    )


@dataclass(frozen=True)
class Layer:
    """One projection of a MoE layer as one GPU holds it: ``experts`` matrices of ``n`` outputs by ``k`` inputs.

    ``gated``: its outputs are gate and up, so SwiGLU can be fused. ``routed_input``: its input rows are routed rows
    already (down), so ``top_k`` of a call is 1. ``source``: where the shape comes from.
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


@dataclass(frozen=True)
class Case:
    """A layer called with one routing draw."""

    layer: Layer
    draw: Draw

    @property
    def name(self) -> str:
        return f"{self.layer.name}_{self.draw.tokens}"

    @property
    def rows(self) -> int:
        """Routed rows: tokens times picks."""
        return self.draw.tokens * self.draw.picks

    @property
    def bytes(self) -> int:
        """Packed bytes of the active experts: what a call must read at least."""
        return self.draw.active * self.layer.expert_bytes


_KIMI = "Kimi K2: hidden 7168, expert intermediate 2048, 384 experts, top 8"

EP8_GATE_UP = Layer("ep8_gate_up", 48, 4096, 7168, True, False, f"{_KIMI}; expert parallel over 8 GPUs")
EP8_DOWN = Layer("ep8_down", 48, 7168, 2048, False, True, f"{_KIMI}; expert parallel over 8 GPUs")
TP8_GATE_UP = Layer("tp8_gate_up", 384, 512, 7168, True, False, f"{_KIMI}; tensor parallel over 8 GPUs")
SMOKE = Layer("smoke_gate_up", 16, 512, 1024, True, False, "small enough for a quick run; no deployment has this shape")

#: Kimi K2 under expert parallelism sees each token's 8 picks fall on 48 local experts. At 20 tokens no expert has more than 8 rows.
EP8_DRAWS = (
    Draw(1, 48, seed=0, active=8, busiest=1),
    Draw(2, 48, seed=0, active=14, busiest=2),
    Draw(4, 48, seed=10, active=25, busiest=3),
    Draw(8, 48, seed=9, active=38, busiest=3),
    Draw(20, 48, seed=7, active=46, busiest=7),
    Draw(30, 48, seed=0, active=48, busiest=9),
    Draw(40, 48, seed=0, active=48, busiest=11),
    Draw(50, 48, seed=0, active=48, busiest=13),
)

#: Under tensor parallelism every GPU holds a slice of all 384 experts; the first draw is as good as any.
TP8_DRAWS = (
    Draw(1, 384, seed=0, active=8, busiest=1),
    Draw(2, 384, seed=0, active=16, busiest=1),
    Draw(4, 384, seed=0, active=32, busiest=1),
    Draw(8, 384, seed=0, active=61, busiest=2),
    Draw(20, 384, seed=0, active=132, busiest=3),
    Draw(30, 384, seed=0, active=183, busiest=4),
    Draw(40, 384, seed=0, active=218, busiest=4),
    Draw(50, 384, seed=0, active=248, busiest=4),
)

SMOKE_DRAWS = (Draw(4, 16, seed=0, active=16, busiest=4),)

CASES: dict[str, tuple[Case, ...]] = {
    "decode": tuple(Case(layer, draw) for layer in (EP8_GATE_UP, EP8_DOWN) for draw in EP8_DRAWS),
    "tp8": tuple(Case(TP8_GATE_UP, draw) for draw in TP8_DRAWS),
    "smoke": tuple(Case(SMOKE, draw) for draw in SMOKE_DRAWS),
}


@lru_cache(maxsize=None)
def _tokens(case_set: str) -> frozenset[int]:
    return frozenset(case.draw.tokens for case in CASES[case_set])


def select(case_set: str, tokens: tuple[int, ...] = ()) -> tuple[Case, ...]:
    """The cases of a set, all or those of the given token counts. Raises ``InputError`` for a set or count without cases."""
    if case_set not in CASES:
        raise InputError("select bench cases", "the set must be known", {"cases": case_set, "known": ", ".join(CASES)}, "name a known set")
    known = _tokens(case_set)
    unknown = sorted(set(tokens) - known)
    if unknown:
        raise InputError(
            "select bench cases", "every token count must have a fixed draw",
            {"cases": case_set, "tokens": unknown, "known": sorted(known)}, "choose among the known counts",
        )
    return tuple(case for case in CASES[case_set] if not tokens or case.draw.tokens in tokens)
