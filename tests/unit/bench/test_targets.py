"""Verdicts: each rule passes on its good side and fails on the other."""

from __future__ import annotations

import pytest

from chord_jit.bench.cases import CASES
from chord_jit.bench.results import PUBLISHED
from chord_jit.bench.targets import TARGETS, Target, peer_best, peer_time, tflops, verdicts
from tests.unit.bench import fixture


def missed(row: dict) -> list[str]:
    return [verdict.rule for verdict in verdicts(row) if not verdict.passed]


def changed(variant: str, make=fixture.row, **fields) -> dict:
    row = make()
    row["variants"][variant] |= fields
    return row


def ragged(equal: float) -> dict:
    row = fixture.grouped_row("ep8_gate_up_ragged_128")
    row["variants"] |= {"ours_equal": fixture.equal_rows(equal), "peer_best": fixture.variant(620.0)}
    return row


def test_every_published_case_has_a_target_and_every_target_a_case():
    assert {case.name for name in PUBLISHED for case in CASES[name]} == set(TARGETS)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("ep8_gate_up_20", Target(reader=0.95, ratio=1.12)),
        ("tp8_gate_up_1", Target(reader=0.85)),
        ("ep8_gate_up_masked_32", Target(ratio=1.20)),
        ("ep8_gate_up_masked_64", Target(ratio=1.20, cublas=0.75)),
        ("ep8_gate_up_offsets_512", Target(ratio=1.09, cublas=1.03)),
        ("ep8_down_offsets_256", Target(ratio=1.17)),
        ("ep8_down_ragged_512", Target(ratio=1.10, equal=1.12)),
        ("ep32_down_masked_16", Target(ratio=1.0)),
        ("ep8_gate_up_prefill_1024", Target(ratio=1.18)),
        ("ep8_down_prefill_2048", Target(ratio=1.20)),
        ("tp8_gate_up_prefill_16384", Target(ratio=1.15)),
        ("tp8_down_prefill_4096", Target(ratio=1.45)),
        ("tp8_down_prefill_16384", Target(ratio=1.80)),
    ],
)
def test_targets_are_those_that_were_set(name, target):
    assert TARGETS[name] == target


def test_every_rule_applies_to_a_full_row_and_it_passes():
    assert [verdict.rule for verdict in verdicts(fixture.row())] == [
        "error of ours", "error of ours_swiglu", "share of the reader", "peer's best / ours", "SwiGLU fused / unfused",
        "host us of a warm call",
    ]
    assert missed(fixture.row()) == []
    assert [verdict.rule for verdict in verdicts(fixture.grouped_row())] == [
        "error of ours", "error of ours_swiglu", "peer's best / ours", "share of cuBLAS", "SwiGLU fused / unfused",
        "host us of a warm call",
    ]  # fmt: skip
    assert missed(fixture.grouped_row()) == [] == missed(ragged(500.0))
    assert [verdict.rule for verdict in verdicts(fixture.prefill_row())] == [
        "error of ours", "error of ours_swiglu", "peer's best / ours", "SwiGLU fused / unfused", "host us of a warm call",
    ]  # fmt: skip
    assert missed(fixture.prefill_row()) == []


@pytest.mark.parametrize(
    ("variant", "fields", "rule"),
    [
        ("ours", {"error": 1.81e-3}, "error of ours"),
        ("ours_swiglu", {"error": 2.51e-3}, "error of ours_swiglu"),
        ("reader", {"us": fixture.times(176.0)}, "share of the reader"),
        ("peer_best", {"us": fixture.times(208.0)}, "peer's best / ours"),
        ("ours_swiglu", {"us": fixture.times(186.5)}, "SwiGLU fused / unfused"),
    ],
)
def test_a_rule_that_is_missed_is_the_only_one(variant, fields, rule):
    assert missed(changed(variant, **fields)) == [rule]


@pytest.mark.parametrize(
    ("variant", "fields", "rule"),
    [
        ("ours", {"error": 2.6e-3}, "error of ours"),
        ("cublas", {"us": fixture.times(1500.0)}, "share of cuBLAS"),
        ("peer_best", {"us": fixture.times(580.0)}, "peer's best / ours"),
        ("ours_swiglu", {"us": fixture.times(549.0)}, "SwiGLU fused / unfused"),
    ],
)
def test_a_grouped_rule_that_is_missed_is_the_only_one(variant, fields, rule):
    assert missed(changed(variant, fixture.grouped_row, **fields)) == [rule]


@pytest.mark.parametrize(
    ("variant", "fields", "rule"),
    [
        ("ours", {"error": 2.6e-3}, "error of ours"),
        ("ours_swiglu", {"error": 3.1e-3}, "error of ours_swiglu"),
        ("ours", {"schedule": "w4a16_mma 16x128x256 s3"}, "error of ours"),
        ("peer_best", {"us": fixture.times(520.0)}, "peer's best / ours"),
    ],
)
def test_a_prefill_rule_that_is_missed_is_the_only_one(variant, fields, rule):
    """Errors are held against the limits of the kernel that made them, whichever the call took."""
    assert missed(changed(variant, fixture.prefill_row, **fields)) == [rule]


def test_a_decode_row_that_wgmma_serves_has_its_limits():
    row = changed("ours", error=2.4e-3, schedule="w4a16_wgmma 16x256x128 s4 split2")
    assert missed(row) == [] and missed(changed("ours", error=2.4e-3)) == ["error of ours"]


def test_ragged_rows_are_held_against_equal_ones():
    assert missed(ragged(489.0)) == ["ragged / equal rows"]


def test_a_decode_layer_may_take_8_us_beyond_its_products_and_the_peer_1_25_times_as_long():
    assert missed(fixture.layer_row()) == []
    assert missed(changed("ours", fixture.layer_row, us=fixture.times(288.0))) == []
    assert missed(changed("ours", fixture.layer_row, us=fixture.times(288.1))) == ["us beyond the two products"]
    assert missed(changed("ours", fixture.layer_row, us=fixture.times(290.0))) == ["peer's best / ours", "us beyond the two products"]
    assert missed(changed("ours", fixture.layer_row, error=4.6e-3)) == ["error of ours"]


def test_a_prefill_layer_may_take_5_percent_beyond_its_products():
    row = fixture.layer_row("ep8_layer_2048")
    row["variants"]["peer_best"]["us"] = fixture.times(500.0)
    row["variants"]["peer_default"]["us"] = fixture.times(500.0)
    row["variants"]["ours"]["us"] = fixture.times(294.0)
    assert missed(row) == []
    row["variants"]["ours"]["us"] = fixture.times(294.1)
    assert missed(row) == ["layer / its two products"]


def test_a_layer_whose_products_were_not_timed_has_no_verdict_on_them():
    rules = [verdict.rule for verdict in verdicts(changed("down", fixture.layer_row, us=None))]
    assert rules == ["error of ours", "peer's best / ours"]


def test_rates_count_the_operations_of_what_ran():
    row = fixture.grouped_row()
    assert tflops(row, "ours") == pytest.approx(658, rel=1e-3)
    assert tflops(row, "cublas") == pytest.approx(685, rel=1e-3)
    assert tflops(row, "reader") is None


@pytest.mark.parametrize(("make", "limit"), [(fixture.row, 15.0), (fixture.prefill_row, 15.0), (fixture.grouped_row, 20.0)])
def test_slow_host_is_a_miss(make, limit):
    assert missed(make(host_us=fixture.times(limit))) == []
    assert missed(make(host_us=fixture.times(limit + 0.1))) == ["host us of a warm call"]


def test_the_peers_default_counts_as_its_best_when_it_is_faster():
    row = changed("peer_default", us=fixture.times(200.0))
    assert peer_best(row) == 200.0
    assert missed(row) == ["peer's best / ours"]


def test_without_a_peer_there_is_no_ratio():
    row = fixture.row()
    del row["variants"]["peer_default"], row["variants"]["peer_best"]
    assert peer_best(row) is None
    assert "peer's best / ours" not in [verdict.rule for verdict in verdicts(row)]


def test_a_wrong_result_leaves_only_its_error():
    row = changed("ours", us=None, error=0.4)
    assert [verdict.rule for verdict in verdicts(row)] == ["error of ours", "error of ours_swiglu"]
    assert missed(row) == ["error of ours"]


def test_disturbed_samples_never_stand_for_the_peer():
    """A median between two humps, as where the peer's launches waited for a busy host."""
    row = fixture.row()
    calm = peer_best(row)
    for name in ("peer_default", "peer_best"):
        if name in row["variants"]:
            row["variants"][name]["us"] |= {"median": 10.0, "p10": 10.0, "p90": 20.5}
    assert calm is not None and peer_best(row) is None
    assert "peer's best / ours" not in [verdict.rule for verdict in verdicts(row)]
    row["variants"]["peer_default"]["us"] |= {"p90": 20.0}
    assert peer_best(row) == 10.0


def test_stand_ins_cost_the_peer_no_more_than_us():
    row = fixture.layer_row()
    row["variants"]["peer_best"]["configuration"] = "indexed: 8x128x64"
    times = {"route": 9.0, "combine": 8.0, "peer_align": 16.0, "peer_combine": 7.0}
    for name, median in times.items():
        row["variants"][name] = fixture.variant(median)
    best = peer_best(row)
    assert peer_time(row) == best - 7.0
    row["variants"]["peer_best"]["configuration"] = "offsets: 8x128x64"
    assert peer_time(row) == best
    assert peer_time(fixture.row()) == peer_best(fixture.row())
