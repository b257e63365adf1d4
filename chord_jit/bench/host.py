"""Host time of a warm call from Python: what a server's thread pays before it can go on."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from chord_jit.bench.timing import Spread


def host_time(call: Callable[[], object], *, batch: int = 100, batches: int = 15) -> Spread:
    """Microseconds of one call that only enqueues; between batches the queue is drained outside the clock."""
    for _ in range(20):
        call()
    samples = []
    for _ in range(batches):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(batch):
            call()
        samples.append((time.perf_counter_ns() - begin) / 1e3 / batch)
    torch.cuda.synchronize()
    return Spread.of(samples)
