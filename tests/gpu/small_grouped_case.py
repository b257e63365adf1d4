"""A few small grouped calls in a process of their own, for compute-sanitizer: every layout, both kernels, SwiGLU, padding, cut tiles.

Drawn, packed and checked on the CPU, as ``small_case`` does.
"""

from __future__ import annotations

import torch

from chord_jit.schedules.schedule import Schedule
from tests.gpu.compare import assert_right
from tests.gpu.grouped_cases import CUT, MMA, PAIRS, GroupedCase
from tests.gpu.grouped_workload import build, forced
from tests.gpu.tensors import held_on

#: Three panels and some 50 token tiles: more tiles than SMs, so that the last waves are cut.
CUTS = Schedule("w4a16_wgmma", 32, 128, 64, 2, split=2)
CALLS = [
    (GroupedCase(3, 384, 192, "offsets", 500, "equal"), CUTS),
    (GroupedCase(3, 72, 96, "blocks", 20, "ragged", **PAIRS), CUT),
    (GroupedCase(2, 512, 128, "masked", 40, "ragged"), Schedule("w4a16_wgmma", 32, 512, 128, 2)),
    (GroupedCase(2, 128, 128, "blocks", 200, "ragged"), Schedule("w4a16_wgmma", 256, 128, 64, 2)),
    (GroupedCase(3, 72, 96, "masked", 20, "ragged", **PAIRS), MMA),
    (GroupedCase(3, 128, 352, "offsets", 20, "ragged"), MMA),
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
