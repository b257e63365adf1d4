"""The shapes, layouts, rows per expert and modes that every value test of the grouped family runs over."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from chord_jit.schedules.schedule import Schedule


@dataclass(frozen=True)
class GroupedCase:
    """One call. ``rows``: mean rows per expert. ``draw`` names counts of ``counts.py``.

    ``hint``: expected rows that the call is told, default ``rows``. ``room``: rows that nobody owns, see ``counts.rows_for``;
    without any the largest count is max_m, and x ends with the last expert's last row.
    """

    experts: int
    n: int
    k: int
    layout: str
    rows: int
    draw: str = "random"
    hint: int | None = None
    room: int = 3
    interleaved: bool = False
    swiglu: bool = False

    @property
    def expected_rows(self) -> int:
        return self.rows if self.hint is None else self.hint

    def __str__(self) -> str:
        modes = ["swiglu"] if self.swiglu else ["interleaved"] if self.interleaved else []
        told = [] if self.hint is None else [f"told{self.hint}"]
        full = [] if self.room else ["full"]
        return "-".join([self.layout, f"E{self.experts}", f"{self.n}x{self.k}", f"r{self.rows}", self.draw, *told, *full, *modes])


MIXED, PAIRS = dict(interleaved=True), dict(interleaved=True, swiglu=True)
FULL = dict(room=0)

#: What a broken kernel fails first: both projections of Kimi K2 at EP8 in every layout, padding on both axes, TP8.
QUICK = [
    GroupedCase(8, 128, 64, "masked", 4),
    GroupedCase(8, 72, 96, "offsets", 40, "ragged"),
    GroupedCase(8, 72, 96, "masked", 20, "ragged", **PAIRS),
    GroupedCase(48, 4096, 7168, "masked", 8, **PAIRS),
    GroupedCase(48, 4096, 7168, "masked", 32, "ragged", **PAIRS),
    GroupedCase(48, 7168, 2048, "masked", 64, "ragged", **FULL),
    GroupedCase(48, 4096, 7168, "offsets", 128, "ragged", **PAIRS),
    GroupedCase(48, 7168, 2048, "offsets", 128, **FULL),
    GroupedCase(48, 4096, 7168, "blocks", 100, "alternate", **PAIRS),
    GroupedCase(48, 7168, 2048, "blocks", 200, "ragged", **FULL),
    GroupedCase(8, 768, 1344, "masked", 48, "last", **MIXED),
    GroupedCase(384, 512, 7168, "masked", 4),
]

#: Every N, every K, every expert count in every layout, and every draw, in no order that a kernel could know. Each has a thousand
#: outputs at least: the error of fewer is too much a matter of chance for the bounds.
MORE = [
    GroupedCase(1, 128, 7168, "masked", 12, "equal", hint=1),
    GroupedCase(1, 1536, 7168, "masked", 1),
    GroupedCase(1, 768, 1344, "blocks", 300),
    GroupedCase(1, 4096, 256, "masked", 2000, "equal", **FULL, **PAIRS),
    GroupedCase(8, 128, 1344, "masked", 200, "hot"),
    GroupedCase(8, 384, 192, "offsets", 40, "one"),
    GroupedCase(8, 512, 64, "offsets", 96, "ragged", **PAIRS),
    GroupedCase(8, 512, 1344, "masked", 24, "one", hint=3, **FULL),
    GroupedCase(8, 768, 192, "masked", 160, "first"),
    GroupedCase(8, 1536, 7168, "offsets", 250, "last"),
    GroupedCase(8, 1536, 2048, "masked", 8, "ragged", hint=512),
    GroupedCase(8, 1536, 2048, "masked", 300, "ragged", hint=1),
    GroupedCase(8, 1536, 2048, "offsets", 2, hint=4096, **FULL),
    GroupedCase(8, 1536, 2048, "blocks", 300, "ragged", hint=1),
    GroupedCase(8, 4096, 192, "blocks", 30, "one", **PAIRS),
    GroupedCase(8, 7168, 7168, "offsets", 512, "ragged"),
    GroupedCase(48, 384, 1344, "offsets", 16, "first", **PAIRS),
    GroupedCase(48, 512, 192, "blocks", 40, "ragged", **MIXED),
    GroupedCase(48, 4096, 7168, "offsets", 16, **MIXED),
    GroupedCase(48, 4096, 7168, "masked", 24, "hot", hint=32, **FULL, **PAIRS),
    GroupedCase(48, 7168, 2048, "masked", 8),
    GroupedCase(384, 512, 7168, "offsets", 8, "one", **PAIRS),
    GroupedCase(384, 7168, 256, "masked", 2),
    GroupedCase(384, 128, 256, "blocks", 3, "alternate"),
    GroupedCase(1025, 128, 64, "offsets", 20, "ragged", **PAIRS),
    GroupedCase(1025, 384, 192, "masked", 3, "alternate"),
    GroupedCase(1025, 128, 256, "blocks", 1, hint=3),
    GroupedCase(1025, 1536, 64, "offsets", 1, "one", **FULL),
]

CASES = [pytest.param(case, id=str(case), marks=pytest.mark.quick) for case in QUICK] + [pytest.param(case, id=str(case)) for case in MORE]

# Schedules that tests force where the point is the kernel's own. What BN and BK must divide is N and K of ``shaped``.
#: Cut tiles, one panel, all widths of one m64 block a warpgroup up to 64 rows.
CUT = Schedule("w4a16_wgmma", 64, 128, 64, 4, split=2)
#: Cut tiles that four warpgroups share.
WIDE = Schedule("w4a16_wgmma", 32, 512, 128, 4, split=2)
#: Cut tiles of two blocks of m_indices.
TALL = Schedule("w4a16_wgmma", 256, 128, 64, 4, split=2)
#: No tile is cut.
WHOLE = replace(CUT, split=1)
MMA = Schedule("w4a16_mma", 16, 128, 256, 3)


def shaped(layout: str, experts: int = 16, rows: int = 70, draw: str = "ragged", **options) -> GroupedCase:
    """A case of the one shape whose kernels most tests share: eight panels, so that 17 token tiles fill an H200."""
    return GroupedCase(experts, 1024, 768, layout, rows, draw, **{"hint": 64, **options})
