"""A few small calls in a process of their own, for compute-sanitizer: padding, dropped ids, SwiGLU, rings that wrap, cuts.

Drawn, packed and checked on the CPU: under the tool each of torch's launches and allocations takes its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from chord_jit.schedules.schedule import Schedule
from tests.gpu import workload
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import wgmma
from tests.gpu.tensors import held_on

CALLS = [
    (Case(3, 72, 96, 5, 2, 8, "dropped"), None),
    (Case(3, 72, 352, 5, 2, 16, "random", **PAIRS), None),
    (Case(3, 128, 1344, 20, 2, 16, "hot", weighted=True), Schedule("w4a16_mma", 8, 128, 256, 2)),
    # Three panels and some 48 token tiles: more tiles than SMs, so that the last waves are cut.
    (Case(3, 384, 192, 700, 2, 32), wgmma(32, 128, 64, 2, split=2)),
    (Case(3, 72, 96, 40, 2, 128, "dropped", **PAIRS), wgmma(64, 128, 64, 4)),
    (Case(2, 512, 128, 40, 2, 96, "hot", weighted=True), wgmma(48, 512, 128, 2)),
]


def main(where: torch.device, calls: Sequence[tuple[object, Schedule | None]] = CALLS, family: ModuleType = workload) -> None:
    """Compares ``calls``. ``family``: builds and forces them, ``workload`` or ``grouped_workload``."""
    for case, schedule in calls:
        print(case, schedule, flush=True)
        drawn = family.build(case, torch.device("cpu"), 7)
        work = held_on(where, drawn)
        with family.forced(schedule):
            assert_right(work.call().cpu(), drawn, work.numerics)


if __name__ == "__main__":
    main(torch.device("cuda", 0))
