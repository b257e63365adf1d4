"""Launches that overlap: two streams, two threads, two graphs, and all of them against one another."""

import pytest

from tests.gpu.cases import Case
from tests.gpu.launches import assert_same_in_two_graphs_and_eager, assert_same_in_two_threads, assert_same_on_two_streams
from tests.gpu.workload import build

PAIRS = {
    "small": (Case(8, 768, 1344, 16, 3, 16), Case(8, 384, 192, 12, 2, 16, "dropped")),
    "EP8": (Case(48, 4096, 7168, 20, 8, 8, interleaved=True, swiglu=True), Case(48, 7168, 2048, 160, 1, 8, weighted=True)),
    "same kernel": (Case(8, 768, 1344, 16, 3, 16), Case(8, 768, 1344, 16, 3, 16, "hot")),
}
KERNELS = [(case, None) for pair in PAIRS.values() for case in pair]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("way", [assert_same_on_two_streams, assert_same_in_two_threads, assert_same_in_two_graphs_and_eager])
def test_v42_v45_overlapping_launches_compute_what_they_compute_alone(way, pair, gpu, seed):
    works = [build(case, gpu, seed + turn) for turn, case in enumerate(PAIRS[pair])]
    way(works, [work.fenced_call() for work in works])
