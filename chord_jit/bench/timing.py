"""Times of GPU work: cold-L2 samples, variants interleaved, and the spread of what was seen.

Interleaving is the point: the clock follows the power limit within a run, so two variants are only comparable when
they take turns. Every sample is flush, event, launch, event; nothing is synchronised until all samples are enqueued,
so the GPU never waits for the host between the two events.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], None]

FLUSH_BYTES = 256 << 20
_WARM_ROUNDS = 3
_LEAST_ROUNDS = 20


@dataclass(frozen=True)
class Spread:
    """Median and 10th and 90th percentile of samples, in microseconds."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(
            round(statistics.median(ordered), 3), round(ordered[round(0.1 * last)], 3), round(ordered[round(0.9 * last)], 3), len(ordered)
        )


class WriteFlush:
    """Evicts L2 by overwriting 256 MB: L2 is cold and full of dirty lines, as in ``triton.testing.do_bench``."""

    def __init__(self, device: torch.device):
        self._buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._buffer.zero_()


def interleave(
    calls: Mapping[str, Call], flush: Call, rounds: int, settle: float = 0.0, seconds: float | None = None
) -> dict[str, Spread]:
    """Cold-L2 time of each call over ``rounds`` rounds; each round has its own order, so no call always follows the same one.

    ``settle``: seconds of the same load before the first sample. The power limit takes most of a second to pull the clock
    down to where a server, or ``do_bench`` with its second of repeats, finds it. ``seconds``: what all rounds may take, by
    the pace of that load; fewer rounds are taken where they would take longer, but never fewer than 20.
    """
    names, order = list(calls), random.Random(0)
    pace = _load(calls, flush, settle)
    if seconds is not None and pace:
        rounds = min(rounds, max(_LEAST_ROUNDS, int(seconds / pace)))
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    for _ in range(rounds + _WARM_ROUNDS):
        for name in order.sample(names, len(names)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush()
            start.record()
            calls[name]()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {name: Spread.of([1e3 * a.elapsed_time(b) for a, b in taken[_WARM_ROUNDS:]]) for name, taken in pairs.items()}


def _load(calls: Mapping[str, Call], flush: Call, seconds: float) -> float | None:
    """Run rounds for ``seconds``; returns the seconds of one, ``None`` where there was no time for any."""
    begin = now = time.perf_counter()
    done = 0
    while now < begin + seconds:
        for call in calls.values():
            flush()
            call()
        torch.cuda.synchronize()
        done += 1
        now = time.perf_counter()
    return (now - begin) / done if done else None


def back_to_back(call: Call, launches: int) -> float:
    """Microseconds per launch of ``launches`` launches in a row, no flush."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / launches
