"""One schedule for every call of a family, whatever the resolver would take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chord_jit import knobs
from chord_jit.families.base import Family
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule


@contextmanager
def forced_in(family: Family, schedule: Schedule | None) -> Iterator[None]:
    """Calls of ``family`` within the block run ``schedule``; None: the resolver's.

    No knob names the kernel, so a schedule that both kernels know in every other field cannot be forced by knobs.
    """
    if schedule is None:
        yield
        return

    def choose(problem: object) -> Schedule:
        broken = violations(problem, schedule)
        assert not broken, f"{schedule} is not legal for {problem}: {'; '.join(broken)}"
        return schedule

    with knobs.scope(), pytest.MonkeyPatch.context() as patch:  # the scope makes plans of their own
        patch.setattr(family, "schedule", choose)
        yield
