"""From times to winners: noise, what the table holds, few kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chord_jit.tune import contest as contest_module
from chord_jit.tune.decide import Point, choose, points
from chord_jit.tune.held import by_contest
from tests.unit.tune.fakes import LAYER, A, B, C, contest, timed


def point(rows: int, scores: dict, held=None) -> Point:
    return Point(("key",), rows, scores, {schedule: 10 * score for schedule, score in scores.items()}, held)


def won(*found: Point, used=()) -> list:
    return choose(found, used)


def test_the_fastest_wins():
    assert won(point(8, {A: 1.2, B: 1.0, C: 1.02})) == [B]


def test_noise_does_not_replace_what_the_table_holds():
    assert won(point(8, {A: 1.0099, B: 1.0}, held=A)) == [A]
    assert won(point(8, {A: 1.0101, B: 1.0}, held=A)) == [B]
    assert won(point(8, {B: 1.0}, held=A)) == [B]  # what was refused is not held


def test_neighbours_take_one_kernel_where_it_is_good_for_both():
    assert won(point(8, {A: 1.0, B: 1.005}), point(16, {A: 1.03, B: 1.0})) == [B, B]
    assert won(point(8, {A: 1.0, B: 1.02}), point(16, {A: 1.03, B: 1.0})) == [A, B]


def test_a_run_of_neighbours_is_as_long_as_one_kernel_is_good_for_all():
    shared = [point(8, {A: 1.0, B: 1.0}), point(16, {A: 1.0, B: 1.0, C: 1.005}), point(32, {B: 1.0, C: 1.008}), point(64, {C: 1.0, A: 1.0})]
    assert won(*shared) == [B, B, B, A]


def test_a_kernel_that_is_needed_anyway_comes_first():
    assert won(point(8, {A: 1.0, B: 1.008})) == [A]
    assert won(point(8, {A: 1.0, B: 1.008}), used=[B]) == [B]
    apart = [point(8, {A: 1.0, B: 1.009}), point(16, {C: 1.0}), point(32, {A: 1.009, B: 1.0})]
    assert won(*apart) == [A, C, A]


def test_equal_times_are_decided_the_same_way_every_time():
    assert won(point(8, {A: 1.0, B: 1.0})) == won(point(8, {B: 1.0, A: 1.0})) == [A]


def test_nothing_was_measured():
    assert won() == []
    assert points([contest()], by_contest([]), 60) == []


@pytest.fixture
def two_layouts(monkeypatch):
    """Two cases whose rows lie alike: one table row serves both."""
    one = contest()
    other = replace(one, case=replace(one.case, layer=replace(LAYER, name="other")))
    assert one.key == other.key and one.name != other.name
    monkeypatch.setattr(contest_module.table, "find", lambda *_, **__: B)
    return one, other


def test_cases_that_share_a_row_decide_together(two_layouts):
    one, other = two_layouts
    lines = [*timed(one, {A: 10.0, B: 10.2, C: 12.0}), *timed(other, {A: 24.0, B: 20.0, C: 20.0})]
    (found,) = points([one, other], by_contest(lines), 60)
    assert found.rows == one.rows == 32 and found.held == B
    assert found.scores == pytest.approx({A: 1.1, B: 1.01, C: 1.1}) and found.us == {A: 10.0, B: 10.2, C: 12.0}


def test_a_schedule_that_one_of_them_refused_is_out(two_layouts):
    one, other = two_layouts
    lines = [*timed(one, {A: 10.0, B: 11.0}), *timed(other, {B: 20.0, C: 19.0})]
    (found,) = points([one, other], by_contest(lines), 60)
    assert found.scores.keys() == {B}


def test_only_finalists_win():
    one = contest()
    lines = [*timed(one, {A: 10.0, B: 10.1, C: 10.05}, stage=1, samples=15), *timed(one, {A: 12.0, B: 11.0})]
    (found,) = points([one], by_contest(lines), 60)
    assert found.scores.keys() == {A, B}
