"""Tables of measured schedules: complete, sorted, without overlap, legal wherever they apply, and silent elsewhere."""

import json
from dataclasses import replace
from importlib import resources
from itertools import groupby, pairwise

import pytest

from chord_jit import device
from chord_jit.families.base import family
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import table
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.schedules.problems import SM_COUNTS

FOLDER = resources.files("chord_jit.schedules.tables")
TABLES = {path.name.removesuffix(".json"): path for path in FOLDER.iterdir() if path.name.endswith(".json")}
KEY = ("arch", "sms", "layout", "n", "k", "experts", "swiglu")
FIELDS = {*KEY, "rows_lo", "rows_hi", "schedule", "us", "at_rows", "commit", "gpu"}
ROWS = [(kernel, row) for kernel, path in TABLES.items() for row in json.loads(path.read_text())["rows"]]
INDEXED = [(kernel, row) for kernel, row in ROWS if row["layout"] == "indexed"]


def each(rows: list[tuple]):
    """A test of each of these rows, by kernel, layout, shape and range."""
    names = [f"{kernel} " + "{layout} {n}x{k} {swiglu:d} {rows_lo}-{rows_hi}".format(**row) for kernel, row in rows]
    return pytest.mark.parametrize("kernel, row", rows, ids=names)


EACH_ROW, EACH_INDEXED = each(ROWS), each(INDEXED)
#: The layouts of calls that a row's layout serves.
CALLS = {"indexed": ("indexed",), "masked": ("masked",), "contiguous": ("offsets", "blocks")}


def key_of(row: dict) -> tuple:
    return tuple(row[name] for name in KEY)


def asked(row: dict, rows: int, call: str = "indexed", **changes):
    """The problem of a ``call`` that ``row`` serves, with ``rows`` local rows."""
    facts = replace(device.target(row["arch"]), sms=row["sms"])
    fields = {"facts": facts, "experts": row["experts"], "n": row["n"], "k": row["k"], "expected_rows": rows / row["experts"], **changes}
    form = dict(interleaved=row["swiglu"], swiglu=row["swiglu"])
    return FAMILY.problem(**fields, **form) if call == "indexed" else GROUPED.problem(**fields, **form, layout=call)


def found(kernel: str, row: dict, rows: float, **changes) -> Schedule | None:
    return table.find(kernel, **{**{name: row[name] for name in KEY}, "rows": rows, **changes})


def test_there_are_rows():
    assert {"w4a16_mma", "w4a16_wgmma"} <= set(TABLES) and len(INDEXED) >= 6


@EACH_ROW
def test_a_row_is_complete_and_says_where_its_time_comes_from(kernel, row):
    assert row.keys() == FIELDS and row["layout"] in table.LAYOUTS
    assert 0 <= row["rows_lo"] <= row["at_rows"] < row["rows_hi"] and row["us"] > 0
    assert row["gpu"] and len(row["commit"]) >= 7 and int(row["commit"], 16) >= 0
    target = device.target(row["arch"])
    assert row["gpu"] != target.name or row["sms"] == target.sms


@pytest.mark.parametrize("kernel", TABLES)
def test_a_file_is_in_the_order_and_form_that_tables_have(kernel):
    assert TABLES[kernel].read_text() == table.render(table.read(kernel))


def test_one_problem_and_range_has_one_row_in_all_tables():
    for _, same in groupby(sorted((row for _, row in ROWS), key=lambda row: (key_of(row), row["rows_lo"])), key_of):
        for first, second in pairwise(same):
            assert first["rows_hi"] <= second["rows_lo"], (first, second)


@EACH_ROW
def test_a_row_is_found_over_its_range_and_nowhere_else(kernel, row):
    mine = Schedule(kernel, **row["schedule"])
    inside = [row["rows_lo"], row["rows_hi"] - 1, row["rows_hi"] - 0.01, row["at_rows"]]
    assert [found(kernel, row, rows) for rows in inside] == [mine] * 4
    neighbours = [other for name, other in ROWS if name == kernel and key_of(other) == key_of(row) and other != row]
    for rows in (row["rows_lo"] - 1, row["rows_hi"]):
        if not any(other["rows_lo"] <= rows < other["rows_hi"] for other in neighbours):
            assert found(kernel, row, rows) is None


@EACH_ROW
@pytest.mark.parametrize("change", [
    dict(sms=114), dict(sms=78), dict(arch="sm_100a"), dict(layout="none"), dict(n=8), dict(k=32), dict(experts=1025), dict(swiglu=2),
], ids=str)
def test_v55_a_row_serves_no_other_gpu_and_no_other_problem(kernel, row, change):
    assert found(kernel, row, row["at_rows"]) is not None and found(kernel, row, row["at_rows"], **change) is None


@EACH_ROW
def test_v55_a_row_is_legal_on_every_sm_count_and_is_what_the_family_takes(kernel, row):
    """Of the calls that share the row some may refuse its tile (blocks of 128 rows); a call's rows may be rounded out of its range."""
    chosen, taken = Schedule(kernel, **row["schedule"]), []
    for call in CALLS[row["layout"]]:
        verdicts = []
        for sms in SM_COUNTS:
            for rows in (row["rows_lo"], row["rows_hi"] - 1):
                problem = asked(row, rows, call, facts=replace(device.target(row["arch"]), sms=sms))
                verdicts.append(violations(problem, chosen))
        assert all(verdict == verdicts[0] for verdict in verdicts)
        for rows in (row["at_rows"], row["rows_hi"] - 1):
            problem = asked(row, rows, call)
            if not verdicts[0] and row["rows_lo"] <= problem.expected_rows * problem.experts < row["rows_hi"]:
                assert family(problem.family).schedule(problem) == chosen
                taken.append((call, rows))
    assert row["at_rows"] in {rows for _, rows in taken}


@EACH_INDEXED
def test_a_row_is_legal_wherever_its_tile_divides_the_block_size(kernel, row):
    chosen = Schedule(kernel, **row["schedule"])
    for block_m in (chosen.bm, 3 * chosen.bm):
        assert violations(replace(asked(row, row["at_rows"]), block_m=block_m), chosen) == []


@EACH_INDEXED
def test_v55_a_row_that_the_block_size_forbids_is_passed_over(kernel, row):
    chosen = Schedule(kernel, **row["schedule"])
    problem = asked(row, row["at_rows"], block_m=8)
    other = FAMILY.schedule(problem)
    assert other.bm == 8 and violations(problem, other) == []
    assert (other == chosen) == (chosen.bm == 8)


@EACH_INDEXED
def test_on_another_sm_count_the_cost_model_decides(kernel, row, monkeypatch):
    """A row that was measured on other hardware is as good as none."""
    problem = asked(row, row["at_rows"], facts=replace(device.target(row["arch"]), sms=114))
    before = FAMILY.schedule(problem)
    monkeypatch.setattr(table, "find", lambda *_, **__: None)
    assert FAMILY.schedule(problem) == before
