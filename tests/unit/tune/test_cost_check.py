"""The check of the cost model, short of its GPU: which problems, which sample, and when a choice misses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from chord_jit import device
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tools import check_cost_model, record
from tools.cost_model import report

H200 = device.target("sm_90a")
SEARCHES = check_cost_model.searches(H200, 16)
RECORDED = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "cost_model"


def test_problems_are_outside_the_tables_and_of_every_kind():
    assert len(SEARCHES) == len(check_cost_model.PROBLEMS) >= 6
    assert {one.model for one in SEARCHES} == set(check_cost_model.MODELS)
    rows = sorted(one.case.rows for one in SEARCHES)
    assert rows[0] == 64 and rows[-1] == 8192 and len(set(rows)) >= 4
    assert {one.choice.kernel for one in SEARCHES} >= {"w4a16_mma", "w4a16_wgmma"}
    assert {one.case.layer.gated for one in SEARCHES} == {one.swiglu for one in SEARCHES} == {True, False}


def test_shapes_are_those_of_the_models():
    shapes = {(one.model, layer.name): (layer.experts, layer.n, layer.k) for one in SEARCHES if (layer := one.case.layer)}
    assert shapes["DeepSeek-V3", "tp1_ep8_gate_up"] == (32, 4096, 7168)
    assert shapes["Qwen3-30B-A3B", "tp1_ep8_down"] == (16, 2048, 768)
    assert shapes["Qwen3-235B-A22B", "tp8_ep1_down"] == (128, 4096, 192)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda one: f"{one.name}-{one.case.rows}".replace(" ", "-"))
def test_a_sample_is_legal_varied_and_the_same_each_time(search):
    assert len(set(search.schedules)) == 17 and search.choice not in search.sample
    assert [one for one in search.schedules if violations(search.problem, one)] == []
    assert len({(one.kernel, one.bm, one.bn, one.bk) for one in search.sample}) >= 10
    assert check_cost_model.sampled(search.problem, search.choice, 16) == search.sample


def times(search, choice: float, others: float) -> dict[str, float]:
    return {str(one): others + turn for turn, one in enumerate(search.sample)} | {str(search.choice): choice}


@pytest.mark.parametrize(("choice", "ratio", "passed"), [(90.0, 1.0, True), (129.0, 1.29, True), (131.0, 1.31, False)])
def test_a_choice_is_held_against_the_best_of_the_sample(choice, ratio, passed):
    search = SEARCHES[0]
    row = check_cost_model.verdict(search, times(search, choice, 100.0), {})
    assert (row["ratio"], row["passed"]) == (pytest.approx(ratio), passed)
    assert ("MISSED" in check_cost_model.line(row)) != passed
    assert list(row["us"].values()) == sorted(row["us"].values()) and json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("place", [0, 1])
def test_a_wrong_result_is_a_miss(place):
    """Of the choice, or of another schedule."""
    search = SEARCHES[0]
    wrong = str(search.schedules[place])
    us = {name: time for name, time in times(search, 90.0, 100.0).items() if name != wrong}
    row = check_cost_model.verdict(search, us, {wrong: 0.5})
    assert not row["passed"] and (row["ratio"] is None) == (place == 0)
    assert wrong in check_cost_model.line(row).partition("MISSED")[2]


def test_without_a_gpu_it_compiles_or_says_why(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(check_cost_model.device, "current", lambda: None)
    monkeypatch.setattr(check_cost_model, "warm_up", lambda specs: asked.extend(specs) or SimpleNamespace(failed=0))
    assert check_cost_model.main([]) == 2 and "a GPU is needed" in capsys.readouterr().err and not asked
    assert check_cost_model.main(["--compile-only"]) == 0
    assert {spec.arch for spec in asked} == {"sm_90a"} and len(asked) == 17 * len(SEARCHES)


@pytest.mark.parametrize(("words", "said"), [(["--schedules", "11"], "12 schedules at least"), (["--json", "run.json"], "--commit")])
def test_what_proves_nothing_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        check_cost_model.main(words)
    assert said in capsys.readouterr().err


def test_what_does_not_compile_is_left_out_of_the_sample():
    search = SEARCHES[0]
    choice, first, *_ = search.specs()
    left = search.without({choice, first})
    assert left.schedules == [search.choice, *search.sample[1:]]


def test_a_problem_that_a_table_holds_is_refused(monkeypatch):
    monkeypatch.setattr(check_cost_model.Contest, "held", Schedule("w4a16_mma", 16, 128, 512, 3))
    with pytest.raises(SystemExit, match="is in a table"):
        check_cost_model.searches(H200, 12)


@pytest.mark.parametrize(("choice", "code"), [(90.0, 0), (131.0, 1)])
def test_a_run_is_kept_with_where_and_of_what_it_was_made(choice, code, tmp_path, monkeypatch):
    def rows(wanted, facts):
        return (check_cost_model.verdict(search, times(search, choice, 100.0), {}) for search in wanted)

    monkeypatch.setattr(check_cost_model.device, "current", lambda: H200)
    monkeypatch.setattr(check_cost_model, "warm_up", lambda specs: SimpleNamespace(failed=0, errors=[]))
    monkeypatch.setattr(check_cost_model, "_measure_all", rows)
    path = tmp_path / "runs" / "cost.json"
    assert check_cost_model.main(["--schedules", "12", "--json", str(path), "--commit", "abc"]) == code
    kept = record.newest(path.parent)
    assert kept["commit"] == "abc" and {"gpu", "driver"} <= set(kept["machine"]) and "torch" in kept["versions"]
    assert "--schedules 12" in kept["command"] and str(tmp_path) not in kept["command"]
    assert [len(row["us"]) for row in kept["problems"]] == [13] * len(SEARCHES)


def shown(*rows) -> list[str]:
    """Lines of the block of a run with these problems."""
    run = {**record.origin("0123456789abcdef"), "command": "check it", "rounds": 20, "most_ratio": 1.3, "problems": rows}
    return report.block(run).splitlines()


def test_the_block_tells_choice_best_and_ratio():
    search = SEARCHES[0]
    first, choice = str(search.sample[0]), str(search.choice)
    lines = shown(*(check_cost_model.verdict(search, times(search, us, 100.0), {}) for us in (129.0, 131.0)))
    named = f"| {search.name} | 2048 | `{choice}` |"
    assert lines[-2:] == [f"{named} 129.0 | `{first}` | 100.0 | 1.29 | 17 |", f"{named} 131.0 | `{first}` | 100.0 | **1.31** | 17 |"]
    assert "commit\n0123456789ab, " in "\n".join(lines) and "`check it`" in lines[1] and lines[2].startswith("1 of 2 problems pass")


@pytest.mark.parametrize(("place", "told"), [(0, "**wrong: {}**"), (1, "**1.00, wrong: {}**")])
def test_the_block_names_what_is_wrong(place, told):
    search = SEARCHES[0]
    wrong = str(search.schedules[place])
    us = {name: time for name, time in times(search, 90.0, 100.0).items() if name != wrong}
    *_, line = shown(check_cost_model.verdict(search, us, {wrong: 0.5}))
    assert f"| {told.format(wrong)} | 16 |" in line and (" | - | " in line) == (place == 0)


def test_without_a_run_the_page_says_how_to_make_one():
    assert "check_cost_model.py --json FILE --commit COMMIT" in report.block(None)


def test_the_recorded_run_is_of_these_problems():
    rows = record.newest(RECORDED)["problems"]
    assert [(row["problem"], row["rows"]) for row in rows] == [(one.name, one.case.rows) for one in SEARCHES]
    for row in rows:
        assert row["ratio"] == row["choice_us"] / row["best_us"] and row["best_us"] == min(row["us"].values())
