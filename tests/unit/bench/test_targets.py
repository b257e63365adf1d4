"""Verdicts: each rule passes on its good side and fails on the other."""

from __future__ import annotations

import pytest

from chord_jit.bench.cases import CASES
from chord_jit.bench.targets import TARGETS, peer_best, verdicts
from tests.unit.bench import fixture


def missed(row: dict) -> list[str]:
    return [verdict.rule for verdict in verdicts(row) if not verdict.passed]


def changed(variant: str, **fields) -> dict:
    row = fixture.row()
    row["variants"][variant] |= fields
    return row


def test_every_published_case_has_a_target():
    for case in (*CASES["decode"], *CASES["tp8"]):
        assert case.draw.tokens in TARGETS[case.layer.name]


def test_every_rule_applies_to_a_full_row_and_it_passes():
    assert [verdict.rule for verdict in verdicts(fixture.row())] == [
        "error of ours", "error of ours_swiglu", "share of the reader", "peer's best / ours", "SwiGLU fused / unfused",
        "host us of a warm call",
    ]
    assert missed(fixture.row()) == []


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


def test_slow_host_is_a_miss():
    assert missed(fixture.row(host_us=fixture.times(15.1))) == ["host us of a warm call"]


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
