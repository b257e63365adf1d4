"""A few small calls in a process of their own, for compute-sanitizer: each kernel, padding, dropped ids, SwiGLU, rings that wrap, cuts.

Drawn, packed and checked on the CPU: under the tool each of torch's launches and allocations takes its time.
"""

from __future__ import annotations

import torch

from chord_jit.schedules.schedule import Schedule
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import resident, wgmma
from tests.gpu.tensors import held_on
from tests.gpu.workload import build, forced

CALLS = [
    (Case(3, 72, 96, 5, 2, 8, "dropped"), None),
    (Case(3, 72, 352, 5, 2, 16, "random", **PAIRS), None),
    (Case(3, 128, 1344, 20, 2, 16, "hot", weighted=True), Schedule("w4a16_mma", 8, 128, 256, 2)),
    # Three panels and some 48 token tiles: more tiles than SMs, so that the last waves are cut.
    (Case(3, 384, 192, 700, 2, 32), wgmma(32, 128, 64, 2, split=2)),
    (Case(3, 72, 96, 40, 2, 128, "dropped", **PAIRS), wgmma(64, 128, 64, 4)),
    (Case(2, 512, 128, 40, 2, 96, "hot", weighted=True), wgmma(48, 512, 128, 2)),
    # Two warpgroups, one panel, a K tail; then three, and 280 units of eleven panels: some CTA takes a third one into a used buffer,
    # and every second tile of a block is empty.
    (Case(3, 72, 96, 40, 2, 128, "dropped", **PAIRS), resident(128, 128, 2)),
    (Case(140, 2816, 96, 140, 2, 64, "balanced", weighted=True), resident(32, 128, 3)),
]


def main(where: torch.device) -> None:
    for case, schedule in CALLS:
        print(case, schedule, flush=True)
        drawn = build(case, torch.device("cpu"), 7)
        work = held_on(where, drawn)
        with forced(schedule):
            assert_right(work.call().cpu(), drawn, work.numerics)


if __name__ == "__main__":
    main(torch.device("cuda", 0))
