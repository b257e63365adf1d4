"""The cost model: counts what a random routing makes, moves the right way, and always gives a number."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.families.indexed import FAMILY
from chord_jit.schedules.cost import expected_blocks, mma_cost, poisson_above
from chord_jit.schedules.legality import mma_shape
from tests.unit.schedules.problems import H200, problem, problems, schedule

#: What a rank may be asked for: nothing, decode, prefill, everything that fits an int32.
ROWS = (0.0, 1e-9, 0.02, 0.4, 1.0, 3.3, 7.9, 8.0, 15.9, 30.0, 128.5, 199.9, 200.0, 200.1, 1000.0, 2.0**20, 2.0**31 - 1)
rows = st.sampled_from(ROWS) | st.floats(0, 400)


# -- blocks of a random routing -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("bm", [8, 16])
@pytest.mark.parametrize("mean", [0.02, 0.4, 1.0, 3.3, 8.0, 16.7, 64.0, 190.0])
def test_blocks_are_those_of_poisson_rows(mean, bm):
    blocks = np.ceil(np.random.poisson(mean, 200_000) / bm)
    assert abs(blocks.mean() - expected_blocks(mean, bm)) < 5 * blocks.std() / len(blocks) ** 0.5


@pytest.mark.parametrize("tokens", [1, 20, 200])
def test_blocks_are_those_of_a_router(tokens):
    """Kimi's router: 8 distinct experts of 384 a token, 48 of them on this rank."""
    draws = 100 + 4000 // tokens
    scores = np.random.random((draws, tokens, 384))
    chosen = np.argpartition(scores, 8, axis=-1)[..., :8]
    counts = np.stack([np.bincount(draw.ravel(), minlength=384)[:48] for draw in chosen])
    blocks = np.ceil(counts / 8).sum(-1)
    expected = 48 * expected_blocks(tokens * 8 / 384, 8)
    assert abs(blocks.mean() - expected) < 0.03 * expected + 5 * blocks.std() / draws**0.5


@pytest.mark.parametrize("mean, count", [(0.5, 0), (3.0, 2), (8.0, 8), (50.0, 60)])
def test_the_tail_is_a_poisson_tail(mean, count):
    exact = 1 - sum(math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) for n in range(count + 1))
    assert poisson_above(mean, count) == pytest.approx(exact, abs=1e-12)


@given(rows, st.sampled_from([8, 16]))
def test_blocks_hold_the_rows_and_no_block_is_empty(mean, bm):
    blocks = expected_blocks(mean, bm)
    assert mean / bm * (1 - 1e-3) - 1e-12 <= blocks <= min(mean, mean / bm + 1) * (1 + 1e-9) + 1e-12


@given(rows, rows, st.sampled_from([8, 16]))
def test_more_rows_make_more_blocks(one, other, bm):
    less, more = sorted((one, other))
    assert expected_blocks(less, bm) <= expected_blocks(more, bm) + 1e-9
    assert expected_blocks(one, 16) <= expected_blocks(one, 8) + 1e-9


def offered(asked) -> list:
    """The candidates that the model of this page answers for."""
    return [one for one in FAMILY.candidates(asked) if one.kernel == "w4a16_mma"]


# -- microseconds -------------------------------------------------------------------------------------------------------
@given(problems(), rows, st.randoms(use_true_random=False))
def test_a_cost_is_a_positive_number(asked, mean, random):
    asked = replace(asked, expected_rows=mean)
    for one in random.choices(offered(asked), k=5):
        assert 0 < mma_cost(asked, one) < math.inf


@given(problems(), rows, rows, st.randoms(use_true_random=False))
def test_more_work_is_never_cheaper(asked, one, other, random):
    less, more = sorted((one, other))
    chosen = random.choice(offered(asked))

    def cost(**changes):
        return mma_cost(replace(asked, **{"expected_rows": less, **changes}), chosen)

    base = cost() - 1e-9
    assert cost(expected_rows=more) >= base
    assert cost(experts=asked.experts + 7) >= base
    assert cost(n=asked.n + 1024) >= base
    assert cost(k=asked.k + 512) >= base
    assert cost(facts=replace(asked.facts, sms=asked.facts.sms - 8)) >= base


@given(problems(), st.randoms(use_true_random=False))
def test_no_launch_beats_the_memory(asked, random):
    for one in random.choices(offered(asked), k=3):
        shape = mma_shape(asked, one)
        weights = asked.experts * expected_blocks(asked.expected_rows, one.bm) * shape.row_panels * shape.k_blocks * 4608
        assert mma_cost(asked, one) >= weights / 4.8e6  # the card's nominal 4.8 TB/s


def test_one_tile_more_than_a_wave_costs_most():
    """Rows above 200 make a fixed number of blocks: 26 of 8 rows, so 4 experts of one panel are 104 tiles."""
    asked = replace(problem(experts=4, n=128, k=7168), expected_rows=205.0)
    costs = [mma_cost(replace(asked, facts=replace(H200, sms=sms)), schedule()) for sms in (106, 105, 104, 103, 102)]
    steps = np.diff(costs)
    assert steps.argmax() == 2 and steps[2] > 3 * max(steps[0], steps[1], steps[3])


def test_few_tiles_are_split_and_many_are_not():
    few, many = problem(experts=1, n=512, k=7168, rows=8.0), problem(experts=48, n=4096, k=7168, rows=8.0)
    assert mma_cost(few, schedule(split=4)) < mma_cost(few, schedule())
    assert mma_cost(many, schedule(split=4)) > mma_cost(many, schedule())


def test_a_tile_of_16_rows_reads_the_weights_once_where_8_read_them_twice():
    asked = problem(experts=48, n=4096, k=7168, rows=14.0)
    assert mma_cost(asked, schedule(16)) < 0.8 * mma_cost(asked, schedule(8))
    lone = replace(asked, expected_rows=1.0)
    assert mma_cost(lone, schedule(16)) == pytest.approx(mma_cost(lone, schedule(8)), rel=0.05)


def test_a_shallow_ring_and_short_copies_are_dearer():
    asked = problem(experts=48, n=4096, k=7168, rows=100.0)  # so many tiles that only the stream counts
    deep = schedule(bk=256, stages=3, ctas=2)
    assert mma_cost(asked, replace(deep, stages=2)) > 1.05 * mma_cost(asked, deep)
    assert mma_cost(asked, replace(deep, bn=256, bk=128)) > 1.05 * mma_cost(asked, deep)


def test_the_largest_request_is_answered_at_once():
    asked = problem(experts=1025, n=8192, k=8192, rows=2**31 - 1)
    assert mma_cost(asked, FAMILY.schedule(asked)) < math.inf
