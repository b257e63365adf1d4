"""Indexed cases: a layer and one fixed routing draw per token count.

A draw is fixed so that the bytes of a case never change between runs; activations, codes and scales are drawn fresh.
Each seed is the first one, counting from 0, whose draw meets the wanted counts (``find_seed``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.layers import EP8_DOWN, EP8_GATE_UP, SMOKE, TP8_DOWN, TP8_GATE_UP, Layer
from chord_jit.errors import InputError

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


class DrawnCase(AnyCase):
    """A case whose rows are those of one routing draw."""

    draw: Draw

    companions: ClassVar[tuple] = ()

    @property
    def name(self) -> str:
        return f"{self.layer.name}_{self.size}"

    @property
    def size(self) -> int:
        return self.draw.tokens

    @property
    def rows(self) -> int:
        return self.draw.tokens * self.draw.picks

    @property
    def expected_rows(self) -> float:
        """Routed rows per expert."""
        return self.rows / self.layer.experts

    @property
    def active(self) -> int:
        return self.draw.active

    @property
    def busiest(self) -> int:
        return self.draw.busiest

    @property
    def seed(self) -> int:
        return self.draw.seed

    def rows_per_expert(self) -> np.ndarray:
        return self.draw.rows_per_expert()


@dataclass(frozen=True)
class Case(DrawnCase):
    """A layer called with one routing draw."""

    layer: Layer
    draw: Draw

    family: ClassVar[str] = "indexed"
    kind: ClassVar[str] = "indexed"
    layout: ClassVar[str] = "indexed"
    reads: ClassVar[bool] = True
    multiplies: ClassVar[bool] = False


@dataclass(frozen=True)
class PrefillCase(Case):
    """A layer called with many rows per expert: bound by arithmetic, so cuBLAS takes turns with it and the reader does not.

    ``counts``: what its size counts, ``rows`` (routed ones) where a rank holds some of the experts, ``tokens`` where it holds all.
    """

    counts: str = "rows"

    kind: ClassVar[str] = "prefill"
    reads: ClassVar[bool] = False
    multiplies: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"{self.layer.name}_prefill_{self.size}"

    @property
    def size(self) -> int:
        return self.rows if self.counts == "rows" else self.draw.tokens


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

#: 1024 to 16384 routed rows on 48 local experts; the first draws are as good as any.
EP8_PREFILL_DRAWS = (
    Draw(128, 48, seed=0, active=48, busiest=32),
    Draw(256, 48, seed=0, active=48, busiest=55),
    Draw(512, 48, seed=0, active=48, busiest=108),
    Draw(1024, 48, seed=0, active=48, busiest=199),
    Draw(2048, 48, seed=0, active=48, busiest=373),
)

#: 1024 to 16384 tokens on all 384 experts.
TP8_PREFILL_DRAWS = (
    Draw(1024, 384, seed=0, active=384, busiest=34),
    Draw(2048, 384, seed=0, active=384, busiest=64),
    Draw(4096, 384, seed=0, active=384, busiest=114),
    Draw(8192, 384, seed=0, active=384, busiest=207),
    Draw(16384, 384, seed=0, active=384, busiest=394),
)

SMOKE_DRAWS = (Draw(4, 16, seed=0, active=16, busiest=4),)

INDEXED_SETS: dict[str, tuple[Case, ...]] = {
    "decode": tuple(Case(layer, draw) for layer in (EP8_GATE_UP, EP8_DOWN) for draw in EP8_DRAWS),
    "tp8": tuple(Case(TP8_GATE_UP, draw) for draw in TP8_DRAWS),
    "prefill": tuple(PrefillCase(layer, draw) for layer in (EP8_GATE_UP, EP8_DOWN) for draw in EP8_PREFILL_DRAWS),
    "prefill_tp8": tuple(PrefillCase(layer, draw, "tokens") for layer in (TP8_GATE_UP, TP8_DOWN) for draw in TP8_PREFILL_DRAWS),
    "smoke": tuple(Case(SMOKE, draw) for draw in SMOKE_DRAWS),
}
