"""Launches that are captured, that are warm, that overlap, or that run beside other work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from chord_jit import counters
from tests.gpu.tensors import POISON, bits

#: Calls of each overlapping stream.
ROUNDS = 30
#: Calls of a warm loop, and replays of a graph of several sites.
WARM_CALLS, REPLAYS = 20, 20


def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """``call`` once to warm up, then captured."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def assert_warm_calls_touch_nothing(work, events: Callable[[Callable[[], object]], list[str]]) -> None:
    """Calls of ``work`` into one ``out``: no device memory, no compile, no load, no file, process or import, no synchronisation."""
    out, where = work.fenced_call(), work.x.device
    work.call(out=out)
    torch.cuda.synchronize()
    before, memory = counters(), torch.cuda.memory_stats(where)["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        heard = events(lambda: [work.call(out=out) for _ in range(WARM_CALLS)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert heard == []
    assert counters() == before
    assert torch.cuda.memory_stats(where)["allocation.all.allocated"] == memory


def assert_same_at_every_site_of_one_graph(works: Sequence) -> None:
    """Three works in one graph, the first and last in a row and the second on a branch that may overlap both: each replay agrees."""
    expected = [work.fenced_call() for work in works]
    outs, side = [torch.empty_like(out) for out in expected], torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        works[0].call(out=outs[0])
        with torch.cuda.stream(side):
            works[1].call(out=outs[1])
        works[2].call(out=outs[2])
        torch.cuda.current_stream().wait_stream(side)

    graph = capture(step)
    for turn in range(REPLAYS):
        for out in outs:
            bits(out).fill_(POISON)
        graph.replay()
        same = [torch.equal(bits(out), bits(right)) for out, right in zip(outs, expected, strict=True)]
        assert same == [True] * 3, f"replay {turn}: sites that agree: {same}"


def released_together(streams: Sequence[torch.cuda.Stream]) -> None:
    """Make all ``streams`` wait for one event that lies a few milliseconds ahead, so that what is queued starts at once."""
    gate = torch.cuda.Stream()
    gate.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(gate):
        torch.cuda._sleep(10_000_000)
    for stream in streams:
        stream.wait_stream(gate)


def assert_same_on_two_streams(works: Sequence, expected: Sequence[torch.Tensor]) -> None:
    """``ROUNDS`` calls of two works, each on a stream of its own, queued in turns."""
    outs, streams = _poisoned_outs(expected), [torch.cuda.Stream() for _ in works]
    released_together(streams)
    for turn in range(ROUNDS):
        for work, mine, stream in zip(works, outs, streams, strict=True):
            with torch.cuda.stream(stream):
                work.call(out=mine[turn])
    _assert_rounds(outs, expected)


def assert_same_in_two_threads(
    works: Sequence, expected: Sequence[torch.Tensor], streams: Sequence[torch.cuda.Stream] | None = None
) -> None:
    """Each thread on a stream of its own, or of those given: the launch gives up the GIL in the middle."""
    outs, streams = _poisoned_outs(expected), streams or [torch.cuda.Stream() for _ in works]
    released_together(streams)

    def run(work, mine, stream):
        with torch.cuda.stream(stream):
            for out in mine:
                work.call(out=out)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, works, outs, streams))
    _assert_rounds(outs, expected)


def assert_same_in_two_graphs_and_eager(works: Sequence, expected: Sequence[torch.Tensor]) -> None:
    """A graph of each work and an eager call of the first, all three side by side, ``ROUNDS`` times."""
    outs, eager = [torch.empty_like(right) for right in expected], torch.empty_like(expected[0])
    graphs = [capture(lambda work=work, out=out: work.call(out=out)) for work, out in zip(works, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(ROUNDS):
        for out in [*outs, eager]:
            bits(out).fill_(POISON)
        released_together(streams)
        for graph, stream in zip(graphs, streams[:2], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            works[0].call(out=eager)
        torch.cuda.synchronize()
        for name, out, right in zip(("graph 0", "graph 1", "eager"), [*outs, eager], [*expected, expected[0]], strict=True):
            assert torch.equal(bits(out), bits(right)), f"round {turn}: {name} differs in {_differing(out, right)} outputs"


def assert_same_bits(work, first: torch.Tensor, repeats: int, beside: Callable[[], object] = lambda: None) -> None:
    """``repeats`` calls of ``work``, each with ``beside()`` queued before it, give the bits of ``first``."""
    out, different = torch.empty_like(first), torch.zeros((), dtype=torch.int64, device=first.device)
    for _ in range(repeats):
        beside()
        bits(out).fill_(POISON)
        work.call(out=out)
        different += (bits(out) != bits(first)).any()
    torch.cuda.synchronize()  # what runs beside holds memory that is given back now
    assert int(different) == 0, f"{int(different)} of {repeats} repeats differ"


def side_work(where: torch.device) -> Callable[[], None]:
    """Queues matrix products on a stream of its own: they take SMs from whatever else runs, a few or all, at any time."""
    sizes = [torch.randn(size, size, device=where).bfloat16() for size in (256, 1024, 512)]
    results, stream = [torch.empty_like(a) for a in sizes], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def queue() -> None:
        with torch.cuda.stream(stream):
            for a, result in zip(sizes, results, strict=True):
                torch.mm(a, a, out=result)

    return queue


def _poisoned_outs(expected: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    outs = [[torch.empty_like(right) for _ in range(ROUNDS)] for right in expected]
    for mine in outs:
        for out in mine:
            bits(out).fill_(POISON)
    return outs


def _assert_rounds(outs: list[list[torch.Tensor]], expected: Sequence[torch.Tensor]) -> None:
    torch.cuda.synchronize()
    wrong = [
        f"launch {turn} of work {index} differs in {_differing(out, right)} outputs"
        for index, (mine, right) in enumerate(zip(outs, expected, strict=True))
        for turn, out in enumerate(mine)
        if not torch.equal(bits(out), bits(right))
    ]
    assert not wrong, "\n".join(wrong)


def _differing(out: torch.Tensor, right: torch.Tensor) -> int:
    return int((bits(out) != bits(right)).sum())
