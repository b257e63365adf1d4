"""Calls as CUDA graphs, the way a server replays a step, and calls on several layers in turn, the way a model meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch

_WARM_CALLS = 2

Call = Callable[[], object]


def captured(call: Call) -> Call:
    """One replay of ``call`` for each call of the result.

    ``call`` runs before it is captured, on the same stream, so that its kernels are loaded and what it keeps is in place; what
    it allocates is the graph's own. A graph holds addresses alone, so the result keeps ``call`` and all that it refers to. Raises
    what ``call`` raises; the current stream stays the current one in any case.
    """
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(_WARM_CALLS):
            call()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            call()
    finally:
        # torch leaves the capturing stream current where ending a broken capture raises.
        torch.cuda.set_stream(current)

    def replay(held: Call = call) -> None:
        graph.replay()

    return replay


def in_turn(calls: Sequence[Call]) -> Call:
    """Each call of the result is the next one of ``calls``, over and over."""
    turns = cycle(calls)
    return lambda: next(turns)()
