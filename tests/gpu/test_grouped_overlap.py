"""Grouped launches that overlap, each other and other work: the same bits, however many SMs are left to them and when."""

import pytest

from tests.gpu import grouped_workload, workload
from tests.gpu.cases import Case
from tests.gpu.grouped_cases import CUT, MMA, PAIRS, TALL, WIDE, GroupedCase, shaped
from tests.gpu.grouped_workload import build, forced
from tests.gpu.launches import (
    assert_same_bits,
    assert_same_in_two_graphs_and_eager,
    assert_same_in_two_threads,
    assert_same_on_two_streams,
    side_work,
)

SMALL = {layout: shaped(layout) for layout in ("masked", "offsets", "blocks")}
GATE_UP = GroupedCase(48, 4096, 7168, "masked", 32, "ragged", **PAIRS)
DOWN = GroupedCase(48, 7168, 2048, "masked", 64, "ragged", room=0)

# name: two cases, and the schedule that grouped ones are computed by.
TOGETHER = {
    "cut tiles": (SMALL["offsets"], SMALL["masked"], CUT),
    "same kernel": (SMALL["blocks"], SMALL["blocks"], CUT),
    "EP8": (GATE_UP, DOWN, None),
    "two families": (SMALL["offsets"], Case(8, 768, 1344, 16, 3, 16), CUT),
}

REPEATED = [
    (1000, GATE_UP, None),
    (1000, shaped("offsets", 8, 200), CUT),
    (1000, shaped("masked", 48, 40), WIDE),
    (1000, shaped("blocks", 16, 350), TALL),
    (200, shaped("masked", 48, 12), MMA),
]
KERNELS = [(case, how if isinstance(case, GroupedCase) else None) for *cases, how in TOGETHER.values() for case in cases]
KERNELS += [(case, how) for _, case, how in REPEATED]


@pytest.mark.parametrize("pair", TOGETHER)
@pytest.mark.parametrize("way", [assert_same_on_two_streams, assert_same_in_two_threads, assert_same_in_two_graphs_and_eager])
def test_v42_v45_overlapping_launches_compute_what_they_compute_alone(way, pair, gpu, seed):
    *cases, schedule = TOGETHER[pair]
    makers = [grouped_workload.build if isinstance(case, GroupedCase) else workload.build for case in cases]
    works = [make(case, gpu, seed + turn) for turn, (make, case) in enumerate(zip(makers, cases, strict=True))]
    with forced(schedule):
        way(works, [work.fenced_call() for work in works])


@pytest.mark.parametrize("repeats, case, schedule", REPEATED, ids=[f"{n}-{case}-{how}".replace(" ", "-") for n, case, how in REPEATED])
def test_v52_v53_same_bits_every_time_beside_a_busy_stream(repeats, case, schedule, gpu, seed):
    """Products on another stream take SMs at any time, so CTAs start late, in any order, and meet cuts in any order."""
    work = build(case, gpu, seed)
    with forced(schedule):
        first = work.fenced_call()
        assert_same_bits(work, first, repeats, side_work(gpu))
