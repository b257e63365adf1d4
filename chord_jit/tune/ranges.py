"""From winners at measured counts to the ranges of table rows. ``docs/schedules.md`` states the rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from chord_jit.schedules import table
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.decide import Point

#: Rows that one token tile of a kernel takes at once, where those are not BM: past them an expert's weights are decoded again.
_TILE_ROWS = {"w4a16_mma": 8}

#: An old row's time says nothing any more where a count this near was measured anew.
_NEAR = 1.25
_REACH = 2


@dataclass(frozen=True)
class _Evidence:
    """``schedule`` was best at ``rows``; ``row``: the table row that says so, its range aside."""

    rows: int
    schedule: Schedule
    row: Mapping
    old: bool


def fields_of(schedule: Schedule) -> dict[str, int]:
    """The schedule as a table row holds it: without the kernel, and without what has its default."""
    own = [field for field in fields(schedule) if field.name != "kernel"]
    return {field.name: getattr(schedule, field.name) for field in own if getattr(schedule, field.name) != field.default}


def rows_of(
    found: Sequence[Point], winners: Sequence[Schedule], old: Sequence[tuple[str, Mapping]], *, commit: str, gpu: str
) -> list[tuple[str, dict]]:
    """Kernel and row of every range of one key, from its points and their winners, and from the rows that the tables hold.

    Neighbouring counts with one winner share a row; it keeps the time of the old row, if that is among them, else it has
    the middle one's. Between two winners the boundary stays where an old row had it, or lies where an expert no longer fits
    one token tile of the lower one, or, where that says nothing, at the geometric mean of their counts. Beyond the outermost
    counts a range reaches to half and twice the count, or as far as the old rows did; from one row per expert on down, to 0.
    """
    key = dict(zip(table.KEY, found[0].key, strict=True))
    measured = [
        _Evidence(
            point.rows, winner,
            {**key, "schedule": fields_of(winner), "us": round(point.us[winner], 1), "at_rows": point.rows, "commit": commit, "gpu": gpu},
            False,
        )
        for point, winner in zip(found, winners, strict=True)
    ]  # fmt: skip
    known = [_Evidence(row["at_rows"], Schedule(kernel, **row["schedule"]), row, True) for kernel, row in old]
    groups: list[list[_Evidence]] = []
    for one in sorted([*measured, *(one for one in known if _stays(one, measured))], key=lambda one: (one.rows, one.old)):
        if groups and groups[-1][-1].schedule == one.schedule:
            groups[-1].append(one)
        else:
            groups.append([one])
    bounds = [_boundary(left[-1], right[0], known, key) for left, right in pairwise(groups)]
    first, last = groups[0][0].rows, groups[-1][-1].rows
    low = min([0 if first <= key["experts"] else -(-first // _REACH), *(row["rows_lo"] for _, row in old)])
    high = max([min(last * _REACH, _fits_until(groups[-1][-1], key)), *(row["rows_hi"] for _, row in old)])
    return [
        (group[0].schedule.kernel, {**_best_known(group), "rows_lo": lo, "rows_hi": hi})
        for group, lo, hi in zip(groups, [low, *bounds], [*bounds, high], strict=True)
    ]


def _stays(one: _Evidence, measured: Sequence[_Evidence]) -> bool:
    """Whether an old row still counts: nothing near it was measured, or the nearest count confirmed it."""
    ratio, nearest = min(((max(one.rows, new.rows) / min(one.rows, new.rows), new) for new in measured), key=lambda pair: pair[0])
    return ratio > _NEAR or nearest.schedule == one.schedule


def _fits_until(one: _Evidence, key: Mapping) -> float:
    """The first count at which an expert that fitted one token tile takes two; infinite where rows fall at random (indexed)."""
    tile = _TILE_ROWS.get(one.schedule.kernel, one.schedule.bm) * key["experts"]
    return tile + 1 if key["layout"] != "indexed" and one.rows <= tile else math.inf


def _boundary(left: _Evidence, right: _Evidence, known: Sequence[_Evidence], key: Mapping) -> int:
    """Where ``left`` ends and ``right`` begins. Old rows know more than their one count: what they say between the two holds."""
    for one in known if left.old or right.old else ():
        for edge, side in (("rows_hi", left), ("rows_lo", right)):
            if one.schedule == side.schedule and left.rows < one.row[edge] <= right.rows:
                return one.row[edge]
    edge = _fits_until(left, key)
    return edge if edge <= right.rows else math.ceil(math.sqrt(left.rows * right.rows))


def _best_known(group: Sequence[_Evidence]) -> Mapping:
    old = [one.row for one in group if one.old]
    return old[0] if old else group[(len(group) - 1) // 2].row
