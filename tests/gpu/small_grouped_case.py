"""A few small grouped calls in a process of their own, for compute-sanitizer: every layout, both kernels, SwiGLU, padding, cut tiles.

Drawn, packed and checked on the CPU, as ``small_case`` does.
"""

from __future__ import annotations

import torch

from chord_jit.schedules.schedule import Schedule
from tests.gpu import grouped_workload, small_case
from tests.gpu.grouped_cases import CUT, MMA, PAIRS, GroupedCase

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


if __name__ == "__main__":
    small_case.main(torch.device("cuda", 0), CALLS, grouped_workload)
