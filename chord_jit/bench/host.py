"""Host time of a warm call from Python: what a server's thread pays before it can go on."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from chord_jit.bench.timing import Spread

_LEAST_CALLS, _MOST_CALLS = 20, 100
_LEAD_CALLS = 10
_DRAIN_US = 20_000


def host_time(call: Callable[[], object], gpu_us: float, *, batches: int = 15) -> Spread:
    """Microseconds of one call that only enqueues; between batches the queue is drained outside the clock.

    The first calls after a drain find a sleeping driver and are not counted: in a short batch they would be half of it.
    ``gpu_us``: what one call takes on the GPU; a batch is as long as drains in a hundredth of a second or two.
    """
    batch = max(_LEAST_CALLS, min(_MOST_CALLS, int(_DRAIN_US / gpu_us)))
    samples = []
    for _ in range(batches):
        torch.cuda.synchronize()
        for _ in range(_LEAD_CALLS):
            call()
        begin = time.perf_counter_ns()
        for _ in range(batch):
            call()
        samples.append((time.perf_counter_ns() - begin) / 1e3 / batch)
    torch.cuda.synchronize()
    return Spread.of(samples)
