"""Tables and the page: every row is there, and losing rows say so."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chord_jit.bench import document, plot, report, results
from tests.unit.bench import fixture

LOSING = fixture.row(tokens=8, variants={**fixture.row()["variants"], "ours": fixture.variant(200.0, error=1.66e-3, schedule="s")})


def test_markdown_has_a_line_per_row_and_marks_the_losing_one():
    lines = report.markdown_table(fixture.result(fixture.row(), LOSING)).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].endswith("| pass |")
    assert "**misses: share of the reader 0.9 (at least 0.94)" in lines[3]


def test_columns_show_what_the_row_holds():
    shown = {column.title: column.show(fixture.row()) for column in report.COLUMNS}
    assert shown["of reader"] == "96.8 %"
    assert shown["GB/s"] == "4084"
    assert shown["peer best / ours"] == "1.13"
    assert shown["mJ ours / peer / reader"] == "120 / 120 / 120"
    assert shown["error"] == "1.66e-03 / 2.20e-03"


def test_a_run_without_peer_energy_or_fusion_still_prints():
    bare = fixture.row(host_us=None)
    bare["variants"] = {"reader": {"us": fixture.times(180.0)}, "ours": {"us": fixture.times(186.0), "error": 1.66e-3}}
    shown = {column.title: column.show(bare) for column in report.COLUMNS}
    assert (shown["peer best us"], shown["with SwiGLU us"], shown["mJ ours / peer / reader"]) == ("-", "-", "- / - / -")


def test_a_wrong_result_is_no_time():
    wrong = fixture.row()
    wrong["variants"]["ours"] = {"us": None, "error": 0.3}
    assert report.status(wrong) == "wrong result"
    assert {column.title: column.show(wrong) for column in report.COLUMNS}["GB/s"] == "-"


def test_terminal_table_holds_the_doubts():
    out = io.StringIO()
    Console(file=out, width=400).print(report.table(fixture.result(LOSING, peer=None)))
    text = out.getvalue()
    assert "no peer, not evidence" in text and "share of the reader" in text and "200.0" in text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"peer": None}, "no peer"),
        ({"commit": "unknown"}, "commit"),
        ({"case_set": "smoke"}, "smoke"),
        ({"override": "CHORD_W4A16_BM=8"}, "overridden"),
        ({"flush": "read"}, "not by write"),
        ({"case_set": "tp8", "rows": [fixture.row(1, "tp8_gate_up")]}, "cases left out: tp8_gate_up_2, tp8_gate_up_4,"),
        ({"reader_bar": None}, "void"),
        ({"reader_bar": {"bytes": 760_000_000, "us": 186.0, "form": "bulk"}}, "4.09 TB/s"),
    ],
)
def test_doubts_name_why_a_run_is_no_evidence(changes, word):
    assert results.doubts(fixture.result()) == []
    assert word in results.doubts(fixture.result(**changes))[0]


def test_the_page_shows_command_commit_and_every_case():
    page = document.performance({"decode": fixture.result(fixture.row(), LOSING)})
    for text in ("chord bench --cases decode", "0123456789ab", "580.1", "ep8_gate_up_20", "ep8_gate_up_8", "img/decode.png", "misses"):
        assert text in page
    assert "Not evidence: cases left out" in page and "Not evidence" not in document.performance({"decode": fixture.result()})
    assert "**Not evidence: no peer" in document.performance({"decode": fixture.result(peer=None)})


def test_the_page_without_results_says_so():
    assert "No run has been recorded" in document.performance({})


def test_the_plot_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    bare = fixture.row(tokens=1, layer="ep8_down")
    bare["variants"] = {"reader": bare["variants"]["reader"], "ours": bare["variants"]["ours"]}
    path = tmp_path / "img" / "decode.png"
    plot.draw(fixture.result(fixture.row(), LOSING, bare), path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
