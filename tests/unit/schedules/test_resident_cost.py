"""The cost model of w4a16_resident: always a number, moves the right way, and is chosen where K is short and rows are many."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import resident
from chord_jit.schedules.cost import resident_cost
from tests.unit.schedules.problems import H200, KIMI, problem, problems, resident_schedule

ROWS = st.sampled_from([0.0, 1e-9, 0.4, 8.0, 64.0, 4096.0, 4097.0, 2.0**31 - 1]) | st.floats(0, 400)
short = st.integers(1, 24).map(lambda blocks: 32 * blocks)


def some(asked, random, count: int) -> list:
    """A few candidates; none where the shape leaves this kernel none."""
    offered = [one for one in FAMILY.candidates(asked) if one.kernel == "w4a16_resident"]
    return random.choices(offered, k=count) if offered else []


@given(problems(), short, ROWS, st.randoms(use_true_random=False))
def test_a_cost_is_a_positive_number(asked, k, mean, random):
    asked = replace(asked, k=k)
    for one in some(asked, random, 5):
        assert 0 < resident_cost(replace(asked, expected_rows=mean), one) < math.inf


@given(problems(), short, st.floats(0, 400), st.floats(0, 400), st.randoms(use_true_random=False))
def test_more_work_is_never_cheaper(asked, k, one, other, random):
    """Except by outputs: a few more may cut a row tile into more units, which fill more SMs. K is the schedule's own."""
    less, more = sorted((one, other))
    base = replace(asked, k=k, expected_rows=less)
    for chosen in some(base, random, 1):
        cost = resident_cost(base, chosen) * (1 - 1e-3)  # the tails of the distribution are cut
        for change in (dict(expected_rows=more), dict(experts=base.experts + 7)):
            assert resident_cost(replace(base, **change), chosen) >= cost, change


@given(problems(), short, st.randoms(use_true_random=False))
def test_no_launch_beats_the_memory(asked, k, random):
    """The weights once and the outputs once, at the card's nominal 4.8 TB/s."""
    asked = replace(asked, k=k)
    for one in some(asked, random, 2):
        sizes = resident.shape(asked, one)
        outputs = asked.experts * asked.expected_rows * asked.n * (1 if asked.swiglu else 2)
        assert resident_cost(asked, one) >= (asked.experts * sizes.row_panels * sizes.k_blocks * 4608 + outputs) / 4.8e6


def test_a_full_gpu_pays_for_twice_the_outputs():
    one = resident_schedule(96)
    half, whole = (resident_cost(problem(experts=384, n=n, k=256, rows=85.3), one) for n in (3584, 7168))
    assert 1.8 < whole / half < 2.1


@pytest.mark.parametrize("rows, height", [(12, 32), (42.7, 64), (90, 128), (341, 128)])
def test_more_rows_want_taller_tiles(rows, height):
    """At 12 rows a tall tile wastes most of its instruction, at 341 a short one starts a unit for each few rows."""
    asked = problem(experts=384, n=7168, k=256, rows=rows)
    costs = {bm: resident_cost(asked, resident_schedule(bm, stages=3)) for bm in (32, 48, 64, 96, 128)}
    assert costs[height] <= 1.1 * min(costs.values()), costs


@pytest.mark.parametrize("rows", [64.0, 128.0, 256.0, 512.0])
def test_short_k_and_many_rows_choose_it_without_a_table(rows):
    """Down of Kimi K2 at TP8; its gate/up, and down at EP8, have a long K and never do."""
    facts = replace(H200, sms=131)
    chosen = {}
    for name in ("TP8", "EP8"):
        model = KIMI[name]
        for shape in (model.gate_up, model.down):
            chosen[name, shape[1]] = FAMILY.schedule(FAMILY.problem(facts, model.local_experts, *shape, rows)).kernel
    assert chosen == {
        ("TP8", 7168): "w4a16_wgmma", ("TP8", 256): "w4a16_resident", ("EP8", 7168): "w4a16_wgmma", ("EP8", 2048): "w4a16_wgmma",
    }  # fmt: skip
