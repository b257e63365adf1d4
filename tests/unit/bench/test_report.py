"""Tables and the page: every row is there, and losing rows say so."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chord_jit.bench import columns, document, plot, report, results
from tests.unit.bench import fixture

LOSING = fixture.row(tokens=8, variants={**fixture.row()["variants"], "ours": fixture.variant(200.0, error=1.66e-3, schedule="s")})


def test_markdown_has_a_line_per_row_and_marks_the_losing_one():
    lines = report.markdown_table(fixture.result(fixture.row(), LOSING)).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].endswith("| pass |")
    assert "**misses: share of the reader 0.9 (at least 0.94)" in lines[3]


def test_columns_show_what_the_row_holds():
    shown = {column.title: column.show(fixture.row()) for column in columns.FULL["indexed"]}
    assert shown["of reader"] == "96.8 %"
    assert shown["GB/s"] == "4084"
    assert shown["peer best / ours"] == "1.13"
    assert shown["mJ ours / peer / reader"] == "120 / 120 / 120"
    assert shown["error"] == "1.66e-03 / 2.20e-03"


def test_a_run_without_peer_energy_or_fusion_still_prints():
    bare = fixture.row(host_us=None)
    bare["variants"] = {"reader": {"us": fixture.times(180.0)}, "ours": {"us": fixture.times(186.0), "error": 1.66e-3}}
    shown = {column.title: column.show(bare) for column in columns.FULL["indexed"]}
    assert (shown["peer best us"], shown["with SwiGLU us"], shown["mJ ours / peer / reader"]) == ("-", "-", "-")


def test_columns_that_nothing_fills_are_left_out():
    bare = fixture.row()
    bare["variants"] = {"ours": bare["variants"]["ours"]}
    assert "| layer | tokens | experts | MB | ours us | p10-p90 | GB/s | in a row, us ours / peer / reader |" in report.markdown_table(
        fixture.result(bare)
    )


def test_grouped_rows_show_rates_and_energy_beside_cublas():
    shown = {column.title: column.show(fixture.grouped_row()) for column in columns.FULL["grouped"]}
    assert (shown["layout"], shown["rows"], shown["TFLOP/s"], shown["of cuBLAS"]) == ("offsets", "128", "658", "96.1 %")
    assert (shown["peer best / ours"], shown["reader us"], shown["equal rows us"]) == ("1.09", "-", "-")
    assert shown["mJ ours / peer / cuBLAS"] == "120 / 120 / 120"
    assert shown["pJ/flop ours / peer / cuBLAS"] == "0.33 / 0.33 / 0.11"


def test_prefill_rows_show_routed_rows_rates_and_energy():
    shown = {column.title: column.show(fixture.prefill_row()) for column in columns.FULL["prefill"]}
    assert (shown["tokens"], shown["routed rows"], shown["most rows"]) == ("-", "4096", "108")
    assert (shown["TFLOP/s"], shown["of cuBLAS"], shown["peer best / ours"]) == ("529", "77.2 %", "1.16")
    assert shown["mJ ours / peer / cuBLAS"] == "120 / 120 / 120"
    assert shown["pJ/flop ours / peer / cuBLAS"] == "0.50 / 0.50 / 0.11"
    whole = {column.title: column.show(fixture.prefill_row("tp8_down_prefill_4096")) for column in columns.FULL["prefill"]}
    assert (whole["tokens"], whole["routed rows"]) == ("4096", "32768")


def test_a_whole_layer_shows_its_parts_beside_the_peers():
    shown = {column.title: column.show(fixture.layer_row()) for column in columns.FULL["layer"]}
    assert (shown["tokens"], shown["routed rows"], shown["peer best / ours"]) == ("20", "160", "1.27")
    assert shown["gate/up / down / route / combine us"] == "186.0 / 94.0 / 7.0 / 6.0"
    assert (shown["beyond both products us"], shown["over both products"]) == ("5.0", "1.018")
    assert shown["its align / gate/up / SwiGLU / down / combine us"] == "7.0 / 215.0 / 5.0 / 110.0 / 6.0"
    assert (shown["error ours / peer"], shown["verdict"]) == ("3.40e-03 / 4.10e-03", "pass")
    without = fixture.layer_row()
    del without["variants"]["down"]
    assert columns.status(without) == "pass" and next(iter(columns.COMPACT["layer"][3:])).show(without) == "-"


def test_the_page_names_what_stood_in_for_ops_that_the_peer_lacks():
    page = document.performance({"layer": fixture.result(case_set="layer")})
    assert "Around the peer's kernels: align in Triton; all else is the peer's." in page
    assert "| ep8_layer_20 | w4a16_mma 16x128x512 s3; w4a16_mma 16x128x256 s3 | w4a16_mma 16x128x512 s3 | w4a16_mma 16x128x256 s3 |" in page


def test_prefill_counts_tokens_where_every_expert_is_at_hand():
    ep8, tp8 = (report.markdown_table(fixture.result(case_set=name)).splitlines()[0] for name in ("prefill", "prefill_tp8"))
    assert "| layer | routed rows | most rows | MB | ours us |" in ep8 and "| layer | tokens | routed rows |" in tp8
    assert "reader" not in ep8 + tp8 and "TFLOP/s" in ep8 and "mJ" in ep8


def test_companions_have_columns_where_they_ran():
    ragged = fixture.grouped_row("ep8_gate_up_ragged_128")
    ragged["variants"]["ours_equal"] = fixture.equal_rows(500.0)
    shown = {column.title: column.show(ragged) for column in columns.filled(columns.FULL, [ragged])}
    assert (shown["most rows"], shown["equal rows us"], shown["over equal rows"]) == ("149", "500.0", "1.096")
    assert "by m_indices us" not in shown and "of reader" not in shown


def test_a_refused_call_says_why():
    refused = fixture.grouped_row()
    refused["variants"]["ours"] = {"us": None, "error": float("inf"), "refused": "run\n  rule: too\n  many rows"}
    assert report.status(refused) == "refused: run rule: too many rows"


def test_a_wrong_result_is_no_time():
    wrong = fixture.row()
    wrong["variants"]["ours"] = {"us": None, "error": 0.3}
    assert report.status(wrong) == "wrong result"
    assert {column.title: column.show(wrong) for column in columns.FULL["indexed"]}["GB/s"] == "-"


def test_a_terminal_gets_what_it_has_room_for():
    titles = [column.header for column in report.table(fixture.result(case_set="grouped")).columns]
    assert titles == [
        "layer", "layout", "rows", "ours us", "TFLOP/s", "of cuBLAS", "with SwiGLU us", "peer best us", "peer best / ours",
        "pJ/flop ours / peer / cuBLAS", "verdict",
    ]  # fmt: skip


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
        ({"failures": ["ep8_down failed: out of memory"]}, "ep8_down failed"),
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


def test_a_set_without_a_weight_of_the_bars_size_needs_no_bar():
    assert results.doubts(fixture.result(case_set="ep", reader_bar=None)) == []


def test_the_page_without_results_says_so():
    assert "No run has been recorded" in document.performance({})
    assert document.measured({}) == "No run has been recorded yet."


def test_the_block_of_the_readme_is_short_and_takes_every_row():
    runs = {name: fixture.result(case_set=name) for name in ("decode", "grouped", "prefill")}
    runs["decode"] = fixture.result(fixture.row(), LOSING, case_set="decode")
    lines = document.measured(runs).splitlines()
    assert [line for line in lines if line.startswith("### ")] == ["### decode", "### prefill", "### grouped"]
    assert "| layer | tokens | ours us | of reader | peer best / ours | targets |" in lines
    assert "| ep8_gate_up | 20 | 186.0 | 96.8 % | 1.13 | met |" in lines
    assert "| ep8_gate_up | 8 | 200.0 | 90.0 % | 1.05 | **missed** |" in lines
    assert "| ep8_gate_up | offsets | 128 | 548.0 | 96.1 % | 1.09 | met |" in lines
    assert "| ep8_gate_up | 4096 | 455.0 | 529 | 77.2 % | 1.16 | met |" in lines
    assert any(line.startswith("**Not evidence: cases left out: ep8_gate_up_1,") for line in lines)
    assert sum(line.startswith("| ep8_") for line in lines) == 2 + 14 + 10


def test_every_published_set_has_its_section_and_command():
    page = document.performance({name: fixture.result(case_set=name) for name in results.PUBLISHED})
    assert [line for line in page.splitlines() if line.startswith("## ")] == [f"## {name}" for name in results.PUBLISHED]
    assert "for cases in decode tp8 prefill prefill_tp8 grouped ragged ragged_few ep layer;" in page


def test_the_plot_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    bare = fixture.row(tokens=1, layer="ep8_down")
    bare["variants"] = {"reader": bare["variants"]["reader"], "ours": bare["variants"]["ours"]}
    path = tmp_path / "img" / "decode.png"
    grouped = fixture.grouped_row(), fixture.grouped_row("ep8_down_masked_16")
    prefill = fixture.prefill_row(), fixture.prefill_row("ep8_down_prefill_1024")
    for rows in ((fixture.row(), LOSING, bare), grouped, prefill, (fixture.layer_row(), fixture.layer_row("ep8_layer_2048"))):
        plot.draw(fixture.result(*rows), path)
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
        path.unlink()
