"""A family with one schedule for every problem: what lets schedules take turns within one process."""

from __future__ import annotations

from chord_jit.errors import InputError
from chord_jit.families.grouped import GroupedFamily
from chord_jit.families.indexed import IndexedFamily
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule


class _Fixed:
    """Laid over a family: its ``schedule`` is the given one, or ``InputError`` where that is illegal."""

    def __init__(self, schedule: Schedule):
        super().__init__()
        self._schedule = schedule

    def schedule(self, problem: object) -> Schedule:
        broken = violations(problem, self._schedule)
        if broken:
            raise InputError(f"time {self._schedule}", "; ".join(broken), {"n": problem.n, "k": problem.k}, "leave this schedule out")
        return self._schedule


class FixedIndexed(_Fixed, IndexedFamily):
    """The indexed family with one schedule."""


class FixedGrouped(_Fixed, GroupedFamily):
    """The grouped family with one schedule."""
