"""Successive halving: who goes on, who may not be dropped, and how many samples each one costs."""

from __future__ import annotations

import pytest

from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.halving import LAST, play, rounds_of, survivors

FIELD = [Schedule("k", 8, 128, 64, stages) for stages in range(1, 101)]
SPEED = {schedule: 100.0 + schedule.stages for schedule in FIELD}


def played(schedules, always=(), speed=SPEED, rounds=60, missing=()):
    """The entrants of each stage and its samples; ``missing`` schedules cannot be timed."""
    seen = []

    def time(stage, entrants, samples):
        seen.append((stage, len(entrants), samples))
        return {schedule: speed[schedule] for schedule in entrants if schedule not in missing}

    assert play(schedules, rounds, time, always)
    return seen


@pytest.mark.parametrize("rounds, wanted", [(60, (5, 15, 60)), (200, (16, 50, 200)), (8, (5, 8, 8)), (1, (1, 1, 1))])
def test_samples_of_the_stages(rounds, wanted):
    assert rounds_of(rounds) == wanted


@pytest.mark.parametrize(
    "count, wanted",
    [(100, [(0, 100, 5), (1, 25, 15), (2, 5, 60)]), (20, [(0, 20, 5), (1, 12, 15), (2, 5, 60)]),
     (12, [(1, 12, 15), (2, 5, 60)]), (5, [(2, 5, 60)]), (1, [(2, 1, 60)])],
)  # fmt: skip
def test_entrants_of_the_stages(count, wanted):
    assert played(FIELD[:count]) == wanted


def test_the_fastest_go_on_whatever_their_place_in_the_list():
    assert survivors(dict(reversed(SPEED.items())), 0) == FIELD[:25]
    assert survivors(SPEED, 1) == FIELD[:5]


def test_equal_times_go_by_the_schedule_so_that_runs_agree():
    even = dict.fromkeys(FIELD, 7.0)
    assert survivors(even, 1) == survivors(dict(reversed(even.items())), 1) == FIELD[:5]


def test_what_the_decision_asks_for_is_never_dropped():
    assert survivors(SPEED, 1, [FIELD[80], FIELD[2]]) == [*FIELD[:5], FIELD[80]]
    assert played(FIELD, [FIELD[80]])[-1] == (LAST, 6, 60)


def test_what_cannot_be_timed_takes_no_place():
    assert played(FIELD, missing=FIELD[:3])[1:] == [(1, 25, 15), (2, 5, 60)]
    assert played(FIELD[:3], missing=FIELD[:3]) == [(2, 3, 60)]


def test_a_stage_that_is_not_known_ends_it():
    assert not play(FIELD, 60, lambda stage, entrants, samples: None)
