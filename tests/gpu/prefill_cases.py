"""Indexed cases of many rows per expert, and the WGMMA schedules that tests force on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chord_jit.schedules.schedule import Schedule
from tests.gpu.cases import LONG, PAIRS, Case

#: Cut tiles, one panel; legal for every N and K, and for every block_m that 64 divides.
CUT = Schedule("w4a16_wgmma", 64, 128, 64, 4, split=2)
#: No tile is cut, so a tile's sums do not depend on its place among the others.
WHOLE = replace(CUT, split=1)
#: Short tiles of one panel, and of four that as many warpgroups share.
SHORT = Schedule("w4a16_wgmma", 32, 128, 64, 4)
WIDE = Schedule("w4a16_wgmma", 16, 512, 128, 4, split=2)
MMA = Schedule("w4a16_mma", 16, 128, 256, 3)


def resident(bm: int, k: int, stages: int) -> Schedule:
    return Schedule("w4a16_resident", bm, 128, k, stages)


#: Rows resident; legal where K pads to 256.
RESIDENT = resident(64, 256, 6)


def shaped(block_m: int, tokens: int = 400, draw: str = "random", *, experts: int = 16, top_k: int = 2, **options) -> Case:
    """A case of the one shape whose kernels most tests share: eight panels, so that 17 token tiles fill an H200."""
    return Case(experts, 1024, 768, tokens, top_k, block_m, draw, **options)


def wgmma(bm: int, bn: int, bk: int, stages: int, split: int = 1) -> Schedule:
    return Schedule("w4a16_wgmma", bm, bn, bk, stages, split=split)


#: What a broken kernel fails first: both projections of Kimi K2 at EP8 and TP8, all rows on one expert, padding on both axes.
QUICK = [
    (Case(8, 128, 64, 100, 2, 64), CUT),
    (Case(1, 128, 64, 257, 1, 64, "hot"), CUT),
    (Case(8, 72, 96, 150, 2, 64, "dropped", **PAIRS), CUT),
    (Case(48, 4096, 7168, 512, 8, 64, **PAIRS), None),
    (Case(48, 7168, 2048, 3000, 1, 48, weighted=True), wgmma(48, 256, 128, 4, 2)),
    (Case(384, 512, 7168, 800, 8, 16, **PAIRS, **LONG), wgmma(16, 256, 256, 3, 2)),
    (Case(384, 7168, 256, 4096, 1, 64, "balanced", weighted=True), wgmma(64, 256, 128, 3)),
    (Case(384, 7168, 256, 9000, 1, 128, weighted=True), resident(128, 256, 3)),
    (Case(8, 128, 64, 100, 2, 64), resident(64, 64, 4)),
]

#: Every N, every K, every expert count and every router, over tiles of every height; blocks of several tiles too.
MORE = [
    (Case(1, 4096, 192, 1000, 1, 128, "hot", **PAIRS), wgmma(128, 256, 64, 3, 2)),
    (Case(8, 384, 96, 300, 2, 192, "dropped", weighted=True, **LONG), wgmma(192, 128, 64, 3, 2)),
    (Case(8, 384, 192, 200, 4, 192, "ep", **PAIRS), CUT),
    (Case(8, 768, 1344, 333, 3, 64, "hot", interleaved=True), None),
    (Case(8, 1536, 2048, 200, 8, 192, "balanced", **PAIRS), wgmma(96, 256, 128, 3)),
    (Case(8, 512, 7168, 700, 2, 160), wgmma(160, 256, 64, 3, 2)),
    (Case(8, 7168, 192, 1000, 1, 128, "hot", weighted=True), wgmma(128, 128, 64, 4)),
    (Case(48, 1536, 96, 3000, 2, 256, "dropped"), wgmma(256, 128, 64, 3, 2)),
    (Case(48, 4096, 7168, 100, 8, 32, "sparse", interleaved=True), wgmma(32, 512, 128, 3, 2)),
    (Case(1025, 128, 64, 3000, 8, 32, **PAIRS), SHORT),
    (Case(1025, 384, 192, 1500, 1, 64, "hot"), CUT),
    (Case(8, 72, 96, 150, 2, 64, "dropped", **PAIRS), resident(32, 128, 3)),
    (Case(8, 768, 224, 300, 4, 192, "ep", **PAIRS), resident(96, 256, 4)),
    (Case(8, 768, 256, 400, 2, 96, "hot", interleaved=True), resident(48, 256, 6)),
    (Case(8, 7168, 192, 1000, 1, 128, "hot", weighted=True, **LONG), resident(128, 192, 4)),
    (Case(48, 1536, 192, 3000, 2, 64, "sparse", weighted=True), resident(64, 192, 4)),
    (Case(1025, 128, 64, 3000, 8, 32, **PAIRS), resident(32, 64, 6)),
]

CALLS = QUICK + MORE


def named(calls: list[tuple[Case, Schedule | None]]) -> list:
    """Parameters with ids; those of ``QUICK`` are marked."""
    marks = {call: pytest.mark.quick for call in QUICK}
    return [pytest.param(call, id=f"{call[0]}-{call[1] or 'chosen'}".replace(" ", "-"), marks=marks.get(call, ())) for call in calls]
