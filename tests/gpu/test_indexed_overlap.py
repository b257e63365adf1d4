"""Launches that overlap: two streams, two threads, two graphs, and all of them against one another."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.gpu.cases import Case
from tests.gpu.test_indexed_graphs import bits, capture
from tests.gpu.workload import POISON, build

ROUNDS = 30
PAIRS = {
    "small": (Case(8, 768, 1344, 16, 3, 16), Case(8, 384, 192, 12, 2, 16, "dropped")),
    "EP8": (Case(48, 4096, 7168, 20, 8, 8, interleaved=True, swiglu=True), Case(48, 7168, 2048, 160, 1, 8, weighted=True)),
    "same kernel": (Case(8, 768, 1344, 16, 3, 16), Case(8, 768, 1344, 16, 3, 16, "hot")),
}
KERNELS = [(case, None) for pair in PAIRS.values() for case in pair]
BOTH = pytest.mark.parametrize("pair", PAIRS)


@pytest.fixture
def works(pair, gpu, seed):
    return [build(case, gpu, seed + turn) for turn, case in enumerate(PAIRS[pair])]


def released_together(streams):
    """Make all ``streams`` wait for one event that lies a few milliseconds ahead, so that what is queued starts at once."""
    gate = torch.cuda.Stream()
    gate.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(gate):
        torch.cuda._sleep(10_000_000)
    for stream in streams:
        stream.wait_stream(gate)


def assert_rounds(outs, expected):
    torch.cuda.synchronize()
    for mine, right in zip(outs, expected, strict=True):
        assert [torch.equal(bits(out), bits(right)) for out in mine] == [True] * len(mine)


def poisoned_outs(expected):
    outs = [[torch.empty_like(right) for _ in range(ROUNDS)] for right in expected]
    for out in outs[0] + outs[1]:
        bits(out).fill_(POISON)
    return outs


@BOTH
def test_two_streams(works, gpu):
    expected = [work.fenced_call() for work in works]
    outs, streams = poisoned_outs(expected), [torch.cuda.Stream() for _ in works]
    released_together(streams)
    for turn in range(ROUNDS):
        for work, mine, stream in zip(works, outs, streams, strict=True):
            with torch.cuda.stream(stream):
                work.call(out=mine[turn])
    assert_rounds(outs, expected)


@BOTH
def test_two_threads(works, gpu):
    """Each thread on a stream of its own: the launch gives up the GIL in the middle."""
    expected = [work.fenced_call() for work in works]
    outs, streams = poisoned_outs(expected), [torch.cuda.Stream() for _ in works]
    released_together(streams)

    def run(work, mine, stream):
        with torch.cuda.stream(stream):
            for out in mine:
                work.call(out=out)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, works, outs, streams))
    assert_rounds(outs, expected)


@BOTH
def test_two_graphs_and_an_eager_stream(works, gpu):
    expected = [work.fenced_call() for work in works]
    outs, eager = [torch.empty_like(right) for right in expected], torch.empty_like(expected[0])
    graphs = [capture(lambda work=work, out=out: work.call(out=out)) for work, out in zip(works, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(ROUNDS):
        for out in [*outs, eager]:
            bits(out).fill_(POISON)
        released_together(streams)
        for graph, stream in zip(graphs, streams[:2], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            works[0].call(out=eager)
        torch.cuda.synchronize()
        for out, right in zip([*outs, eager], [*expected, expected[0]], strict=True):
            assert torch.equal(bits(out), bits(right))
