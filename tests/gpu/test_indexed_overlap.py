"""Indexed launches that overlap, each other and other work: the same bits, however many SMs are left to them and when."""

import pytest

from tests.gpu.cases import PAIRS, Case
from tests.gpu.launches import (
    assert_same_bits,
    assert_same_in_two_graphs_and_eager,
    assert_same_in_two_threads,
    assert_same_on_two_streams,
    side_work,
)
from tests.gpu.prefill_cases import CUT, WIDE, named, shaped
from tests.gpu.workload import build, forced

PREFILL = Case(48, 4096, 7168, 512, 8, 64, **PAIRS)

# name: two cases, and the schedule that computes them.
TOGETHER = {
    "small": (Case(8, 768, 1344, 16, 3, 16), Case(8, 384, 192, 12, 2, 16, "dropped"), None),
    "EP8": (Case(48, 4096, 7168, 20, 8, 8, **PAIRS), Case(48, 7168, 2048, 160, 1, 8, weighted=True), None),
    "same kernel": (Case(8, 768, 1344, 16, 3, 16), Case(8, 768, 1344, 16, 3, 16, "hot"), None),
    "cut tiles": (shaped(64), shaped(128, 300, "hot"), CUT),
    "few and many rows": (Case(48, 7168, 2048, 160, 1, 8, weighted=True), PREFILL, None),
}

REPEATED = [(PREFILL, None), (shaped(64, 700, "dropped"), CUT), (shaped(48, 300, experts=48), WIDE)]
KERNELS = [(case, how) for *cases, how in TOGETHER.values() for case in cases]


@pytest.mark.parametrize("pair", TOGETHER)
@pytest.mark.parametrize("way", [assert_same_on_two_streams, assert_same_in_two_threads, assert_same_in_two_graphs_and_eager])
def test_v42_v45_overlapping_launches_compute_what_they_compute_alone(way, pair, gpu, seed):
    *cases, schedule = TOGETHER[pair]
    works = [build(case, gpu, seed + turn) for turn, case in enumerate(cases)]
    with forced(schedule):
        way(works, [work.fenced_call() for work in works])


@pytest.mark.parametrize("call", named(REPEATED))
def test_v52_v53_same_bits_every_time_beside_a_busy_stream(call, gpu, seed):
    """Products on another stream take SMs at any time, so CTAs start late, in any order, and meet cuts in any order: 1000 repeats."""
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        assert_same_bits(work, work.fenced_call(), 1000, side_work(gpu))
