"""Small calls of ``w4a16_resident``, as ``small_case`` makes others: for memcheck alone, since racecheck does not follow its lists.

``docs/kernels/w4a16_resident.md`` says why what racecheck reports there is no race.
"""

from __future__ import annotations

import torch

from tests.gpu import small_case
from tests.gpu.cases import PAIRS, Case
from tests.gpu.prefill_cases import resident

CALLS = [
    # Two warpgroups, one panel, a K tail; then three, and 280 units of eleven panels: some CTA takes a third one into a used buffer,
    # and every second tile of a block is empty.
    (Case(3, 72, 96, 40, 2, 128, "dropped", **PAIRS), resident(128, 128, 2)),
    (Case(140, 2816, 96, 140, 2, 64, "balanced", weighted=True), resident(32, 128, 3)),
]


if __name__ == "__main__":
    small_case.main(torch.device("cuda", 0), CALLS)
