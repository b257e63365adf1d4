"""From winners to table rows: ranges, boundaries, provenance, and what becomes of the rows that were there."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.errors import InputError
from chord_jit.schedules import table
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune import write
from chord_jit.tune.decide import Point
from chord_jit.tune.ranges import fields_of, rows_of
from tests.unit.schedules.problems import SM_COUNTS, problem
from tests.unit.tune.fakes import COMMIT, A, B, C, W, contest, row

KEY = contest().key


def ranges(winners: dict[int, Schedule], old=()) -> dict[tuple[int, int], Schedule]:
    """Range to schedule after ``winners`` by count of rows."""
    return {(one["rows_lo"], one["rows_hi"]): Schedule(kernel, **one["schedule"]) for kernel, one in laid_out(winners, old)}


def laid_out(winners: dict[int, Schedule], old=()) -> list[tuple[str, dict]]:
    found = [Point(KEY, rows, {one: 1.0}, {one: rows / 3}, None) for rows, one in winners.items()]
    return rows_of(found, list(winners.values()), [("w4a16_mma", one) for one in old], commit=COMMIT, gpu="NVIDIA H200")


def test_one_winner_is_one_row_from_the_middle_count():
    ((kernel, made),) = laid_out({8: A, 64: A, 400: A})
    assert (kernel, made) == ("w4a16_mma", row(A, 0, 800, 64, us=21.3, commit=COMMIT)) and list(made) != []
    assert laid_out({8: A, 64: A})[0][1]["at_rows"] == 8


def test_boundaries_lie_at_the_geometric_mean():
    assert ranges({8: A, 32: B, 128: B, 512: A}) == {(0, 16): A, (16, 256): B, (256, 1024): A}
    assert ranges({8: A, 9: B}) == {(0, 9): A, (9, 18): B}


def test_the_ends_reach_to_half_and_twice_and_to_nothing_from_one_row_per_expert_on():
    assert ranges({16: A}) == {(0, 32): A}  # 16 experts
    assert ranges({17: A}) == {(9, 34): A}
    assert ranges({2048: A, 4096: B}) == {(1024, 2897): A, (2897, 8192): B}


def test_old_rows_that_are_confirmed_stay_as_they_are():
    old = row(A, 0, 1024, 160)
    assert laid_out({8: A, 160: A, 400: A}, [old]) == laid_out({400: A}, [old]) == [("w4a16_mma", old)]


def test_an_old_row_gives_way_where_it_was_beaten():
    old = row(A, 0, 1024, 160)
    assert laid_out({10: B}, [old]) == [("w4a16_mma", row(B, 0, 40, 10, us=3.3, commit=COMMIT)), ("w4a16_mma", {**old, "rows_lo": 40})]
    assert ranges({10: B, 160: B}, [old]) == {(0, 1024): B}


@pytest.mark.parametrize("rows, gone", [(128, True), (200, True), (127, False), (201, False)])
def test_a_count_near_the_old_one_replaces_its_evidence(rows, gone):
    assert (A not in ranges({rows: B}, [row(A, 0, 1024, 160)]).values()) is gone


def test_a_new_range_beyond_the_old_ones_is_added():
    old = [row(A, 0, 13, 8), row(B, 13, 800, 160)]
    assert ranges({1600: C}, old) == {(0, 13): A, (13, 800): B, (800, 3200): C}


def test_a_boundary_that_the_table_knows_stays_unless_both_sides_are_new():
    old = [row(A, 0, 13, 8), row(B, 13, 800, 160)]
    assert ranges({160: C}, old) == {(0, 13): A, (13, 800): C}
    assert ranges({8: A, 160: B}, old) == {(0, 13): A, (13, 800): B}
    assert ranges({8: A, 160: C}, old) == {(0, 13): A, (13, 800): C}
    assert ranges({12: A, 48: B, 160: B}, [row(A, 0, 40, 2), row(B, 40, 800, 400)]) == {(0, 24): A, (24, 800): B}


schedules = st.sampled_from([A, B, C, W])
counts = st.dictionaries(st.integers(1, 50_000), schedules, min_size=1, max_size=8)


@given(counts, st.dictionaries(st.integers(1, 50_000), st.sampled_from([A, B, C]), max_size=4))
def test_ranges_are_whole_and_hold_what_was_measured(winners, before):
    old, low = [], 0
    for at, one in sorted(before.items()):
        old.append(row(one, low, at + 1, at))
        low = at + 1
    made = laid_out(dict(sorted(winners.items())), old)
    for _, one in made:
        assert one["rows_lo"] <= one["at_rows"] < one["rows_hi"] and one.keys() == set(table.FIELDS)
    for (_, first), (_, second) in pairwise(made):
        assert first["rows_hi"] == second["rows_lo"]
    for rows, winner in winners.items():
        (found,) = [Schedule(kernel, **one["schedule"]) for kernel, one in made if one["rows_lo"] <= rows < one["rows_hi"]]
        assert found == winner


@given(counts)
def test_the_same_measurements_again_change_nothing(winners):
    winners = dict(sorted(winners.items()))
    points = [Point(KEY, rows, {one: 1.0}, {one: 5.0}, None) for rows, one in winners.items()]
    first = write.decided({"w4a16_mma": [], "w4a16_wgmma": []}, points, commit=COMMIT, gpu="g")
    again = write.decided(first, points, commit="9999999", gpu="g")
    assert write.changes(first, again) == []


def test_a_schedule_is_written_without_its_defaults_and_read_back():
    odd = Schedule("w4a16_mma", 8, 128, 512, 3, split=3)
    assert fields_of(odd) == {"bm": 8, "bn": 128, "bk": 512, "stages": 3, "split": 3} and Schedule("w4a16_mma", **fields_of(odd)) == odd


# -- the files ----------------------------------------------------------------------------------------------------------
def test_a_problem_has_its_row_in_the_winners_table_alone():
    before = {"w4a16_mma": [row(A, 0, 1024, 160), row(A, 0, 10, 5, n=8)], "w4a16_wgmma": []}
    points = [Point(KEY, 160, {W: 1.0}, {W: 9.0}, A)]
    after = write.decided(before, points, commit=COMMIT, gpu="NVIDIA H200")
    assert after == {"w4a16_mma": [before["w4a16_mma"][1]], "w4a16_wgmma": [row(W, 0, 1024, 160, us=9.0, commit=COMMIT)]}
    assert [(sign, kernel) for sign, kernel, _ in write.changes(before, after)] == [("-", "w4a16_mma"), ("+", "w4a16_wgmma")]
    assert before["w4a16_mma"][0]["rows_hi"] == 1024


def test_a_kernel_that_another_problem_of_the_weight_needs_is_preferred():
    points = [Point(KEY, 160, {A: 1.0, B: 1.008}, {A: 9.0, B: 9.1}, None)]
    before = {"w4a16_mma": [row(B, 0, 1024, 160, experts=8)]}
    assert write.decided(before, points, commit=COMMIT, gpu="g")["w4a16_mma"][1]["schedule"] == fields_of(B)


def test_tables_are_written_sorted_one_row_a_line_and_read_back(tmp_path, monkeypatch):
    tables = {"w4a16_mma": [row(B, 13, 800, 160), row(A, 0, 13, 8), row(A, 0, 13, 8, n=256)], "w4a16_wgmma": []}
    assert [path.name for path in write.write(tables, tmp_path)] == ["w4a16_mma.json", "w4a16_wgmma.json"]
    lines = (tmp_path / "w4a16_mma.json").read_text().splitlines()
    assert len(lines) == 5 and [json.loads(line.rstrip(","))["rows_lo"] for line in lines[1:4]] == [0, 0, 13]
    assert json.loads((tmp_path / "w4a16_wgmma.json").read_text()) == {"rows": []}
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    assert write.write(write.current(), tmp_path) == []
    named = dict(arch="sm_90a", sms=132, layout="indexed", n=512, k=1024, experts=16, swiglu=False)
    assert [table.find("w4a16_mma", **named, rows=rows) for rows in (0, 12, 13, 799, 800)] == [A, A, B, B, None]
    table.load.cache_clear()


def test_the_tables_of_the_tree_are_in_the_form_that_is_written():
    assert write.write(write.current()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be writable"):
        write.write({"w4a16_mma": []}, tmp_path / "no" / "such")


@pytest.mark.parametrize("sms", SM_COUNTS)
def test_what_the_tuner_may_write_is_legal_on_every_sm_count(sms):
    """Candidates alone compete, and no rule that they keep depends on the SM count of a part that is sold."""
    from chord_jit.families.indexed import FAMILY

    here = problem(n=512, k=1024, experts=16)
    there = problem(n=512, k=1024, experts=16, sms=sms)
    assert all(violations(there, schedule) == [] for schedule in FAMILY.candidates(here))
