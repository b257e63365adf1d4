"""The measuring process: what ``supervise`` starts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import torch

from chord_jit import device
from chord_jit.bench.timing import WriteFlush
from chord_jit.tune.contest import Contest
from chord_jit.tune.journal import Journal
from chord_jit.tune.measure import Bench, measure


def work(contests: Sequence[Contest], journal: Journal, *, rounds: int, readers: bool, on_step: Callable[[int, int, object], None]) -> None:
    """Measure on the current CUDA device what ``journal`` lacks."""
    place = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(place).manual_seed(secrets.randbits(62))
    measure(Bench(device.facts(place.index), generator, WriteFlush(place), rounds, readers), contests, journal, on_step)


def driver() -> str:
    """The version of the GPU's driver, as NVML says it."""
    try:
        from chord_jit.bench.power import Meter
    except ImportError:  # cuda.bindings.nvml is public since cuda-python 13.2, of the bench extra
        return "unknown"
    return str(Meter(torch.device("cuda", torch.cuda.current_device())).facts()["driver"])
