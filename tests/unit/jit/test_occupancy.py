"""CTAs of an SM, by cases worked out by hand."""

from __future__ import annotations

import pytest

from chord_jit.device import target
from chord_jit.jit.occupancy import occupancy

#: registers, threads, shared bytes; CTAs, what limits them
CASES = (
    (168, 384, 112880, 1, "registers"),
    (128, 256, 0, 2, "registers"),
    (32, 1024, 0, 2, "registers, threads"),
    (32, 64, 0, 32, "registers, threads, CTAs"),
    (24, 32, 0, 32, "CTAs"),
    (40, 128, 100 * 1024, 2, "shared memory"),
    (40, 128, 232448, 1, "shared memory"),
    (255, 384, 0, 0, "registers"),
)


@pytest.mark.parametrize("registers, threads, shared, ctas, limit", CASES)
def test_cases(registers, threads, shared, ctas, limit):
    found = occupancy(target("sm_90a"), registers, threads, shared)
    assert (found.ctas, found.limited_by) == (ctas, limit)
    assert found.warps == ctas * -(-threads // 32) and found.part == found.warps / 64
