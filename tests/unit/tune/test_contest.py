"""Who competes: cases, forms, candidates, and the cases of a model that is in no set."""

from __future__ import annotations

import pytest

from chord_jit.bench.cases import CASES, select
from chord_jit.cli.bench import CALL_SETS
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import cost, table
from chord_jit.schedules.deployment import Deployment
from chord_jit.tune.contest import contests, with_companions
from chord_jit.tune.model import SIZES, cases_of, layers_of
from tests.unit.tune.fakes import H200, A, B, contest

KIMI_EP8 = Deployment(7168, 2048, 384, 8, ep=8)


def test_candidates_and_the_schedule_that_the_table_holds():
    for one in contests(select("decode", (20,)), H200):
        assert set(FAMILY.candidates(one.problem)) <= set(one.schedules) and one.held in one.schedules
        assert len(set(one.schedules)) == len(one.schedules)


def test_the_cost_model_narrows_the_field_but_not_below_what_the_table_holds():
    (one,) = contests(select("decode", (20,), ("ep8_down",)), H200, most=4)
    prices = sorted(cost.estimate(one.problem, schedule) for schedule in FAMILY.candidates(one.problem))
    assert [cost.estimate(one.problem, schedule) for schedule in one.schedules[:4]] == prices[:4]
    assert len(one.schedules) <= 5 and one.held in one.schedules


def test_given_schedules_compete_alone_or_with_the_candidates():
    assert contest(schedules=(A, B, A)).schedules == (A, B)
    (one,) = contests(select("smoke"), H200, given=[B])
    assert one.schedules[0] == B and len(one.schedules) == len(FAMILY.candidates(one.problem))


def test_forms_that_a_layer_lacks_are_left_out():
    def names(*forms):
        return [(one.case.layer.name, one.swiglu) for one in contests(select("decode", (1,)), H200, forms=forms)]

    assert names(True) == [("ep8_gate_up", True)]
    assert names(False, True) == [("ep8_gate_up", False), ("ep8_gate_up", True), ("ep8_down", False)]


def test_layer_by_layer_and_from_few_rows_to_many():
    order = [(one.case.layer.name, one.rows) for one in contests(reversed(select("decode", (50, 1, 8))), H200)]
    assert order == [("ep8_down", 8), ("ep8_down", 64), ("ep8_down", 400), ("ep8_gate_up", 8), ("ep8_gate_up", 64), ("ep8_gate_up", 400)]


@pytest.mark.parametrize("name", CALL_SETS)
def test_every_case_has_its_own_name_and_a_key_that_tables_know(name):
    found = contests(with_companions(CASES[name]), H200, forms=(False, True), most=1)
    assert len({one.name for one in found}) == len(found)
    for one in found:
        named = dict(zip(table.KEY, one.key, strict=True))
        assert named["layout"] in table.LAYOUTS and named["experts"] == one.case.layer.experts and one.rows == one.case.rows
        assert one.illegal(one.schedules[0]) == "" and len(one.specs()) == len(one.schedules)


def test_the_same_case_of_two_sets_competes_once():
    every = [case for name in ("grouped", "ragged") for case in with_companions(CASES[name])]
    found = contests(every, H200, most=1)
    assert len({one.name for one in found}) == len(found) < len(every)


def test_calls_whose_rows_lie_alike_share_a_key():
    found = contests(with_companions(select("smoke_grouped", (128,))), H200, most=1)
    assert {one.case.layout for one in found} == {"offsets", "blocks"} and len({(one.key, one.rows) for one in found}) == 1


# -- a model ------------------------------------------------------------------------------------------------------------
def test_the_layers_of_a_model_are_those_of_a_rank():
    gate_up, down = layers_of(KIMI_EP8)
    assert (gate_up.experts, gate_up.n, gate_up.k, gate_up.gated) == (48, 4096, 7168, True)
    assert (down.experts, down.n, down.k, down.gated, down.routed_input) == (48, 7168, 2048, False, True)


def test_every_layout_at_its_own_sizes():
    every = list(cases_of(KIMI_EP8, tuple(SIZES)))
    assert len(every) == 2 * sum(map(len, SIZES.values()))
    for layout, sizes in SIZES.items():
        assert [case.size for case in every if table.layout_of(case.layout) == layout] == [*sizes, *sizes]
    found = contests(every, H200, most=1)
    assert len({one.name for one in found}) == len(every)


def test_a_draw_never_picks_more_experts_than_there_are():
    (case, _) = cases_of(Deployment(1024, 512, 16, 8, ep=4), ["indexed"], [3])
    assert case.draw.picks == 4 == case.layer.experts and case.rows == 12 and case.active == 4 and case.busiest == 3
