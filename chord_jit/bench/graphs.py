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
    it allocates is the graph's own. Raises what ``call`` raises; a capture that failed leaves the stream usable.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def in_turn(calls: Sequence[Call]) -> Call:
    """Each call of the result is the next one of ``calls``, over and over."""
    turns = cycle(calls)
    return lambda: next(turns)()
