"""What people read: the fastest first, what the table holds, the reader's share, and why somebody is missing."""

from __future__ import annotations

import json
from dataclasses import replace

from chord_jit.tune import contest as contest_module
from chord_jit.tune import report
from chord_jit.tune.held import by_contest
from tests.unit.tune.fakes import A, B, C, contest, header, row, timed


def shown(one, lines: list[dict]) -> list[str]:
    return list(report.lines(one, by_contest(lines)[one.name], 60))


def test_the_fastest_come_first_with_shares_and_the_held_one_is_marked(monkeypatch):
    monkeypatch.setattr(contest_module.table, "find", lambda *_, **__: A)
    one = contest()
    reader = {"contest": one.name, "at": "reader", "form": "bulk", "us": 5.0}
    title, first, second, third = shown(one, [*timed(one, {A: 10.0, B: 8.0}), reader])
    assert title == f"tiny_gate_up_4: 32 rows, {one.case.bytes / 1e6:.0f} MB, 2 schedules timed" and "5.0 us" in first and "bulk" in first
    assert str(B) in second and "62.5 % of the reader" in second and "in the table" not in second
    assert third.endswith(f"{A}  (in the table)") and "1.00e-03" in third


def test_refusals_are_gathered_by_reason():
    one = contest(swiglu=True)
    lines = [{"contest": one.name, "at": "refused", "schedule": str(each), "why": why} for each, why in ((A, "x"), (B, "y"), (C, "x"))]
    assert shown(one, lines)[1:] == ["  not measured", f"  refused  {A} and 1 more: x", f"  refused  {B}: y"]
    assert shown(one, [{"contest": one.name, "at": "died", "why": "?"}])[1] == "  not measured: processes died in it"


def test_json_has_the_last_stage_of_each_schedule_and_the_changes():
    one = contest()
    lines = [*timed(one, {A: 9.0, B: 9.5, C: 12.0}, stage=0, samples=5), *timed(one, {A: 10.0, B: 8.0})]
    before, after = {"w4a16_mma": [row(A, 0, 64, 32)]}, {"w4a16_mma": [row(B, 0, 64, 32)]}
    made = json.loads(json.dumps(report.as_json(header(), [one, replace(one, swiglu=True)], by_contest(lines), 60, before, after)))
    first, second = made["contests"]
    assert {name: known["us"] for name, known in first["schedules"].items()} == {str(A): 10.0, str(B): 8.0, str(C): 12.0}
    assert first["finished"] and not second["finished"] and made["header"] == header(date=made["header"]["date"])
    assert [change["change"] for change in made["changes"]] == ["-", "+"]
    assert [line[:12] for line in report.changed(before, after)] == ["- w4a16_mma ", "+ w4a16_mma "]
