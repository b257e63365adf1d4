"""Forced schedules, and the problems that cases pose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chord_jit import device, knobs
from chord_jit.bench import ours, sides
from chord_jit.bench.cases import CASES
from chord_jit.errors import InputError
from chord_jit.families.base import FAMILIES
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules.schedule import Schedule

FACTS = device.target("sm_90a")
GATE_UP_20 = next(case for case in CASES["decode"] if case.name == "ep8_gate_up_20")
WIDE = Schedule("w4a16_mma", 8, 128, 512, 3)


def test_overrides_force_the_schedule_through_the_public_resolver():
    for schedule in (WIDE, Schedule("w4a16_mma", 16, 128, 256, 3, ctas=2)):
        with knobs.scope(**ours.overrides(schedule)):
            assert ours.chosen(GATE_UP_20, FACTS, swiglu=False)[1] == schedule


def test_a_named_schedule_is_taken_or_refused():
    assert ours.chosen(GATE_UP_20, FACTS, swiglu=True, schedule=WIDE) == (
        FAMILY.problem(FACTS, 48, 4096, 7168, 160 / 48, block_m=8, interleaved=True, swiglu=True), WIDE,
    )
    with pytest.raises(InputError, match="BM must be 8 or 16"):
        ours.chosen(GATE_UP_20, FACTS, swiglu=False, schedule=Schedule("w4a16_mma", 24, 128, 512, 3))


@pytest.mark.parametrize("name", ["ep8_down_masked_16", "ep8_down_offsets_256"])
def test_a_grouped_case_poses_its_layout_and_rows(name):
    case = next(case for case in CASES["grouped"] if case.name == name)
    problem, schedule = ours.chosen(case, FACTS, swiglu=False)
    assert problem == GROUPED.problem(FACTS, 48, 7168, 2048, case.size, layout=case.layout) == ours.free_problem(case, FACTS, swiglu=False)
    assert schedule == GROUPED.schedule(problem)
    other = next(one for one in GROUPED.candidates(problem) if one != schedule)
    assert ours.chosen(case, FACTS, swiglu=False, schedule=other) == (problem, other)
    with pytest.raises(InputError, match="leave this schedule out"):
        ours.chosen(case, FACTS, swiglu=False, schedule=replace(other, stages=99))


def test_the_public_resolver_is_the_one_that_is_timed():
    assert sides.of(GATE_UP_20).family is FAMILY and sides.of(CASES["ep"][0]).family is GROUPED
    assert set(FAMILIES) - {"rows"} <= set(sides.SIDES)
