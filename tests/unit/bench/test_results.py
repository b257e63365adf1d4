"""Files of results: the hash that ties them to kernels, their names, and which one is the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from chord_jit.bench import document, results
from chord_jit.errors import InputError
from tests.unit.bench import fixture

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "benchmarks" / "results"


def test_a_saved_result_is_loaded_again(tmp_path):
    path = results.save(fixture.result(), tmp_path / "new")
    assert path.name == "20261130T0500-h200-decode-0123456789ab.json"
    assert results.load(path) == fixture.result()


def test_another_schema_is_refused(tmp_path):
    with pytest.raises(InputError, match="schema=0"):
        results.load(results.save(fixture.result(schema=0), tmp_path))


def test_newest_goes_by_date_within_a_published_case_set(tmp_path):
    for changes in (
        {"date": "2026-12-02T05:00:00+00:00", "commit": "aaaa"}, {"date": "2026-12-01T05:00:00+00:00", "commit": "zzzz"},
        {"date": "2026-12-01T06:00:00+00:00", "case_set": "grouped"}, {"date": "2026-12-03T06:00:00+00:00", "case_set": "smoke"},
    ):
        results.save(fixture.result(**changes), tmp_path)
    newest = results.newest(tmp_path)
    assert set(newest) == {"decode", "grouped"} and newest["decode"]["commit"] == "aaaa"
    assert results.newest(tmp_path / "absent") == {}


def test_a_result_is_tied_to_the_cases_that_it_holds():
    whole = results.kernels_hash(fixture.result())
    assert results.kernels_hash(fixture.result(kernels_hash="other", date="later")) == whole
    assert results.kernels_hash(fixture.result(fixture.row(), case_set="decode")) != whole
    one, other = (fixture.result(fixture.row(20, layer)) for layer in ("ep8_gate_up", "ep8_down"))
    assert results.kernels_hash(one) != results.kernels_hash(other)


@pytest.mark.parametrize("case_set", list(results.newest(RECORDED)))
def test_the_newest_results_launched_the_kernels_of_this_tree(case_set):
    result = results.newest(RECORDED)[case_set]
    assert result["kernels_hash"] == results.kernels_hash(result), (
        f"kernels changed since {result['date']}: run `{result['command']}` on the GPU again, then make_performance.py and make_docs.py"
    )


def test_the_performance_page_is_in_step():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page == document.performance(results.newest(RECORDED)), "run python tools/make_performance.py"
