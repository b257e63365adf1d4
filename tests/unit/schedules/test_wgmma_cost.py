"""The cost model of w4a16_wgmma: always a number, moves the right way, and takes wider tiles where there are more rows."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.families.grouped import FAMILY
from chord_jit.schedules import cost, wgmma
from chord_jit.schedules.cost import wgmma_cost
from tests.unit.schedules.problems import LAYOUTS, grouped, grouped_problems, wgmma_schedule

ROWS = (0.0, 1e-9, 0.4, 1.0, 7.9, 16.0, 63.9, 64.0, 128.0, 199.9, 200.0, 200.1, 256.0, 1000.0, 4096.0, 2.0**20, 2.0**31 - 1)
rows = st.sampled_from(ROWS) | st.floats(0, 400)
#: Kimi K2 on one of eight ranks: experts, N, K.
PROJECTIONS = {"EP8 gate/up": (48, 4096, 7168), "EP8 down": (48, 7168, 2048)}
TALL = {bm: wgmma_schedule(bm, 256, 128, 3) for bm in (16, 32, 64, 128)}
every_projection = pytest.mark.parametrize("shape", PROJECTIONS.values(), ids=PROJECTIONS)


def offered(asked) -> list:
    return [one for one in FAMILY.candidates(asked) if one.kernel == "w4a16_wgmma"]


def some(asked, random, count: int) -> list:
    """A few candidates; none where the shape leaves this kernel none."""
    return random.choices(offered(asked), k=count) if offered(asked) else []


@given(grouped_problems(), rows, st.randoms(use_true_random=False))
def test_a_cost_is_a_positive_number(asked, mean, random):
    for one in some(asked, random, 5):
        assert 0 < wgmma_cost(replace(asked, expected_rows=mean), one) < math.inf


@given(grouped_problems(), rows, rows, st.randoms(use_true_random=False))
def test_more_work_is_never_cheaper(asked, one, other, random):
    less, more = sorted((one, other))
    for chosen in some(asked, random, 1):

        def cost_of(**changes):
            return wgmma_cost(replace(asked, **{"expected_rows": less, **changes}), chosen)  # noqa: B023

        base = cost_of() * (1 - 1e-6)
        assert cost_of(expected_rows=more) >= base
        assert cost_of(experts=asked.experts + 7) >= base
        assert cost_of(n=asked.n + 1024) >= base
        assert cost_of(k=asked.k + 512) >= base
        assert cost_of(facts=replace(asked.facts, sms=asked.facts.sms - 8)) >= base


@given(grouped_problems(), st.randoms(use_true_random=False))
def test_no_launch_beats_the_memory(asked, random):
    for one in some(asked, random, 3):
        sizes = wgmma.shape(asked, one)
        assert wgmma_cost(asked, one) >= asked.experts * sizes.row_panels * sizes.k_blocks * 4608 / 4.8e6  # the card's nominal 4.8 TB/s


@every_projection
def test_more_rows_want_a_taller_tile(shape):
    """With 256 outputs a tile: at each row count that fills a tile exactly, that tile is cheaper than any lower one."""
    for count in (32, 64, 128):
        asked = grouped(experts=shape[0], n=shape[1], k=shape[2], rows=count)
        costs = {bm: wgmma_cost(replace(asked, expected_rows=float(8 * count)), one) for bm, one in TALL.items()}
        assert all(costs[count] < costs[bm] for bm in costs if bm < count), (count, costs)


def unmeasured(shape: tuple[int, int, int], rows: int, layout: str):
    """What is chosen on a GPU of so many SMs that no table row serves it."""
    experts, n, k = shape
    return FAMILY.schedule(grouped(sms=114, experts=experts, n=n, k=k, rows=rows, layout=layout))


@every_projection
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chosen_tile_grows_with_the_rows(shape, layout):
    """Blocks of 128 rows are never asked about with fewer than 64."""
    chosen = {count: unmeasured(shape, count, layout) for count in (2, 16, 64, 512)}
    assert 32 <= chosen[64].bm <= 128 and chosen[512].bm >= 96 and {chosen[64].kernel, chosen[512].kernel} == {"w4a16_wgmma"}, chosen
    if layout == "blocks":
        assert chosen[2] == chosen[16] == chosen[64], chosen
    else:
        assert chosen[2].bm <= 32 and chosen[16].bm <= 48 and chosen[16].kernel == "w4a16_wgmma", chosen


@every_projection
def test_one_row_is_left_to_the_other_kernel(shape):
    assert unmeasured(shape, 1, "masked").kernel == "w4a16_mma"


def test_a_cut_last_wave_pays_where_waves_are_few_and_costs_where_there_is_none():
    """133 tiles on 132 SMs: whole tiles take two waves."""
    asked = grouped(experts=133, n=128, k=7168, rows=256, layout="masked")
    whole, cut = wgmma_schedule(256, 128, 64), wgmma_schedule(256, 128, 64, split=2)
    assert wgmma_cost(asked, cut) < 0.8 * wgmma_cost(asked, whole)
    lone = replace(asked, experts=7)
    assert wgmma_cost(lone, cut) > wgmma_cost(lone, whole)


def test_a_shallow_ring_is_dearer_where_only_the_stream_counts():
    asked = grouped(experts=384, n=4096, k=7168, rows=1.0)
    assert wgmma_cost(asked, wgmma_schedule(16, 256, stages=2)) > 1.2 * wgmma_cost(asked, wgmma_schedule(16, 512, stages=3))


@given(grouped_problems(("sm_90a", "sm_100a")))
def test_the_model_of_each_kernel_answers_for_its_schedules(asked):
    for one in FAMILY.candidates(asked)[::37]:
        assert 0 < cost.estimate(asked, one) < math.inf


def test_the_largest_request_is_answered_at_once():
    asked = grouped(experts=1025, n=8192, k=8192, rows=2**31 - 1)
    assert cost.estimate(asked, FAMILY.schedule(asked)) < math.inf
