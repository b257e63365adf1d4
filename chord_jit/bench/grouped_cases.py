"""Grouped cases: a layer, a layout of its rows, and rows per expert, equal or from one fixed draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.layers import EP8_DOWN, EP8_GATE_UP, EP16_DOWN, EP16_GATE_UP, EP32_DOWN, EP32_GATE_UP, SMOKE, Layer

#: From these rows per expert on, a call is bound by arithmetic: the reader says nothing of it, cuBLAS does.
_ARITHMETIC_ROWS = 128
#: From here on a share of cuBLAS is worth quoting; below, its heat would only slow down what takes turns with it.
_DENSE_ROWS = 64
_CAPACITY_STEP = 64


@dataclass(frozen=True)
class Ragged:
    """Rows that fall on local experts at random, each by itself: ``fewest`` and ``busiest`` are consequences of ``seed``."""

    seed: int
    fewest: int
    busiest: int


@dataclass(frozen=True)
class GroupedCase(AnyCase):
    """A layer called with ``mean`` rows per expert in one layout of ``routing.grouped``.

    ``draw``: how the rows fall; equally where ``None``.
    """

    layer: Layer
    layout: str
    mean: int
    draw: Ragged | None = None
    companions: tuple[tuple[str, GroupedCase], ...] = ()

    family: ClassVar[str] = "grouped"
    kind: ClassVar[str] = "grouped"

    @property
    def name(self) -> str:
        return f"{self.layer.name}_{'ragged' if self.draw else self.layout}_{self.mean}"

    @property
    def size(self) -> int:
        return self.mean

    @property
    def rows(self) -> int:
        return self.mean * self.layer.experts

    @property
    def active(self) -> int:
        return self.layer.experts

    @property
    def busiest(self) -> int:
        return self.draw.busiest if self.draw else self.mean

    @property
    def seed(self) -> int | None:
        return self.draw.seed if self.draw else None

    @property
    def reads(self) -> bool:
        return self.mean < _ARITHMETIC_ROWS

    @property
    def multiplies(self) -> bool:
        return self.mean >= _DENSE_ROWS

    @property
    def max_m(self) -> int:
        """Rows that a masked layout keeps for each expert: twice the mean, in whole steps, as an engine sizes its buffer."""
        return -(-2 * self.mean // _CAPACITY_STEP) * _CAPACITY_STEP

    def rows_per_expert(self) -> np.ndarray:
        experts = self.layer.experts
        if self.draw is None:
            return np.full(experts, self.mean)
        owners = np.random.Generator(np.random.PCG64(self.draw.seed)).integers(experts, size=self.rows)
        return np.bincount(owners, minlength=experts)


MASKED_ROWS, CONTIGUOUS_ROWS = (8, 16, 32, 64), (128, 256, 512)

#: The first draw is as good as any.
RAGGED = {128: Ragged(seed=0, fewest=108, busiest=149), 256: Ragged(0, 217, 297), 512: Ragged(0, 468, 559)}
#: Between decode and prefill, as an engine's grouped calls with exact offsets meet them too.
RAGGED_FEW = {16: Ragged(seed=0, fewest=9, busiest=22), 32: Ragged(0, 17, 47), 64: Ragged(0, 50, 80)}
_SMOKE_RAGGED = Ragged(seed=0, fewest=111, busiest=144)


def _equal(layer: Layer, masked: tuple[int, ...], contiguous: tuple[int, ...]) -> tuple[GroupedCase, ...]:
    every = [GroupedCase(layer, "masked", rows) for rows in masked] + [GroupedCase(layer, "offsets", rows) for rows in contiguous]
    return tuple(every)


def _both_contiguous(layer: Layer, rows: int) -> GroupedCase:
    """Exact offsets, and the same rows through ``m_indices`` in turns with them."""
    return GroupedCase(layer, "offsets", rows, companions=(("ours_m_indices", GroupedCase(layer, "blocks", rows)),))


def _ragged(layer: Layer, rows: int, draw: Ragged) -> GroupedCase:
    """Random rows per expert, and equally many equal rows in turns with them."""
    return GroupedCase(layer, "offsets", rows, draw, companions=(("ours_equal", GroupedCase(layer, "offsets", rows)),))


GROUPED_SETS: dict[str, tuple[GroupedCase, ...]] = {
    "grouped": (
        *_equal(EP8_GATE_UP, MASKED_ROWS, ()),
        *(_both_contiguous(EP8_GATE_UP, rows) for rows in CONTIGUOUS_ROWS),
        *_equal(EP8_DOWN, MASKED_ROWS, CONTIGUOUS_ROWS),
    ),
    "ragged": tuple(_ragged(layer, rows, draw) for layer in (EP8_GATE_UP, EP8_DOWN) for rows, draw in RAGGED.items()),
    "ragged_few": tuple(_ragged(layer, rows, draw) for layer in (EP8_GATE_UP, EP8_DOWN) for rows, draw in RAGGED_FEW.items()),
    "ep": tuple(
        case for layer in (EP16_GATE_UP, EP16_DOWN, EP32_GATE_UP, EP32_DOWN) for case in _equal(layer, (16, 64), (128, 512))
    ),
    "smoke_grouped": (GroupedCase(SMOKE, "masked", 16), _both_contiguous(SMOKE, 128), _ragged(SMOKE, 128, _SMOKE_RAGGED)),
}
