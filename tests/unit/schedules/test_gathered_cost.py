"""The cost of gathered tiles: widths of rows that fall at random, and the hand-over from m16n8k16 to WGMMA as rows rise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import wgmma
from chord_jit.schedules.cost import estimate, expected_blocks, expected_widths, wgmma_cost
from chord_jit.schedules.deployment import Deployment
from tests.unit.schedules.problems import H200, grouped, problem, problems, wgmma_schedule

#: Of the models that are served: hidden, expert intermediate, experts, top k.
MODELS = {
    "Kimi K2": (7168, 2048, 384, 8), "DeepSeek-V3": (7168, 2048, 256, 8),
    "Qwen3-30B": (2048, 768, 128, 8), "Qwen3-235B": (4096, 1536, 128, 8),
}  # fmt: skip
RANKS = (dict(ep=8), dict(ep=16), dict(tp=8), dict(tp=4, ep=2))
SHAPES = {
    f"{name} {' '.join(f'{how}{count}' for how, count in ranks.items())} {projection}": (model, projection)
    for name, layer in MODELS.items()
    for ranks in RANKS
    for model in (Deployment(*layer, **ranks),)
    for projection in ("gate_up", "down")
}
#: BM and the widths of its instructions.
TILES = [(wgmma_schedule(bm, bn).bm, wgmma.shape(problem(), wgmma_schedule(bm, bn)).widths) for bm, bn in
         ((16, 256), (32, 128), (48, 512), (64, 256), (96, 256), (128, 128), (160, 256), (256, 128))]  # fmt: skip


def asked(model: Deployment, projection: str, rows: float, **changes):
    """The problem of a layer of one rank at so many rows per expert."""
    gated = projection == "gate_up"
    shape = model.gate_up if gated else model.down
    return FAMILY.problem(H200, model.local_experts, *shape, rows, interleaved=gated, swiglu=gated, **changes)


# -- widths -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bm, widths", TILES, ids=[str(bm) for bm, _ in TILES])
@pytest.mark.parametrize("mean", [0.02, 0.4, 3.3, 11.0, 45.3, 128.0, 181.0, 512.0])
def test_widths_are_those_of_poisson_rows(mean, bm, widths):
    rows = np.random.poisson(mean, 100_000)
    edges = np.array(widths)
    last = edges[np.searchsorted(edges, np.maximum(rows % bm, 1))]
    for width, expected in expected_widths(mean, bm, widths):
        drawn = (rows // bm) * (width == bm) + ((rows % bm > 0) & (last == width))
        assert abs(drawn.mean() - expected) <= 5 * drawn.std() / len(rows) ** 0.5 + 1e-3 * mean / bm + 2e-4, width


@given(st.floats(1e-6, 5000), st.sampled_from(TILES))
def test_tiles_have_room_for_the_rows_and_are_as_many_as_blocks(mean, tile):
    found = dict(expected_widths(mean, *tile))
    assert set(found) <= set(tile[1]) and min(found.values()) >= 0
    assert sum(width * count for width, count in found.items()) >= mean * (1 - 1e-3)
    if mean <= 200:  # above, blocks are those of the mean
        assert sum(found.values()) == pytest.approx(expected_blocks(mean, tile[0]), rel=1e-3, abs=1e-4)


def test_rows_at_random_cost_a_little_more_than_rows_spread_evenly_over_as_many_tiles():
    shape, tile = dict(experts=48, n=4096, k=7168, rows=64), wgmma_schedule(64, 256)
    even = wgmma_cost(grouped(layout="masked", **shape), tile)
    assert even < wgmma_cost(problem(**shape), tile) < 1.2 * even


# -- microseconds -------------------------------------------------------------------------------------------------------
def some(asked, random, count: int) -> list:
    """A few WGMMA candidates; none where the shape leaves this kernel none."""
    offered = [one for one in FAMILY.candidates(asked) if one.kernel == "w4a16_wgmma"]
    return random.choices(offered, k=count) if offered else []


ROWS = st.sampled_from([0.0, 1e-9, 0.4, 8.0, 64.0, 4096.0, 4097.0, 2.0**31 - 1]) | st.floats(0, 400)


@given(problems(), ROWS, st.randoms(use_true_random=False))
def test_a_cost_is_a_positive_number(asked, mean, random):
    for one in some(asked, random, 3):
        assert 0 < wgmma_cost(replace(asked, expected_rows=mean), one) < math.inf


@given(problems(), st.floats(0, 400), st.floats(0, 400), st.randoms(use_true_random=False))
def test_more_work_is_never_cheaper(asked, one, other, random):
    less, more = sorted((one, other))
    for chosen in some(asked, random, 1):
        base = replace(asked, expected_rows=less)
        cost = wgmma_cost(base, chosen) * (1 - 1e-3)  # the tails of the distribution are cut
        changes = dict(expected_rows=more), dict(experts=asked.experts + 7), dict(n=asked.n + 1024), dict(k=asked.k + 512)
        for change in changes:
            assert wgmma_cost(replace(base, **change), chosen) >= cost, change


@given(problems(), st.randoms(use_true_random=False))
def test_no_launch_beats_the_memory(asked, random):
    for one in some(asked, random, 2):
        sizes = wgmma.shape(asked, one)
        assert wgmma_cost(asked, one) >= asked.experts * sizes.row_panels * sizes.k_blocks * 4608 / 4.8e6  # the card's nominal 4.8 TB/s


# -- the hand-over ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model, projection", SHAPES.values(), ids=SHAPES)
def test_rows_are_handed_over_once(model, projection):
    """From the kernel of few rows to those of many, and never back."""
    sizes = [*range(1, 9), *(2 ** (half / 2) for half in range(7, 19))]
    kernels = [FAMILY.schedule(asked(model, projection, rows)).kernel for rows in sizes]
    few = kernels.count("w4a16_mma")
    assert kernels[:few] == ["w4a16_mma"] * few and 8 <= sizes[few] <= 64, dict(zip(sizes, kernels, strict=True))


@pytest.mark.parametrize("model, projection", SHAPES.values(), ids=SHAPES)
def test_a_shared_schedule_costs_no_more_than_the_model_can_tell(model, projection):
    for rows in (2 ** (half / 2) for half in range(7, 19)):
        for block_m in (0, 64, 128):
            one = replace(asked(model, projection, rows, block_m=block_m), facts=replace(H200, sms=131))  # no table knows it
            best = min(estimate(one, other) for other in FAMILY.candidates(one))
            assert estimate(one, FAMILY.schedule(one)) <= 1.03 * best


@pytest.mark.parametrize("model, projection", SHAPES.values(), ids=SHAPES)
def test_many_rows_leave_the_kernel_of_few_far_behind(model, projection):
    one = asked(model, projection, 512.0)
    costs = [(estimate(one, other), other.kernel) for other in FAMILY.candidates(one)]
    assert min(cost for cost, kernel in costs if kernel == "w4a16_mma") > 1.5 * min(costs)[0]
