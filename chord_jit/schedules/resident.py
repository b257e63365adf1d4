"""What a ``w4a16_resident`` schedule means in the kernel's own terms, and every rule that it must keep.

Shared memory is counted as the kernel lays it out; the kernel asserts at compile time that both agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.formats.w4a16_layout import BLOCK_BYTES, PANEL, UNIT_K, panels_of
from chord_jit.schedules.schedule import Schedule

#: Panels that a row tile's unit has, about: enough to hide the gathering of the next one behind, few enough to share out.
_UNIT_PANELS = 14
#: Token rows up to which three consumer warpgroups have registers for their sums.
_MOST_OF_THREE = 96
#: Instruction widths by BM. Each is a main loop with registers of its own for its fragments.
_WIDTHS = {32: (16, 32), 48: (32, 48), 64: (32, 48, 64), 96: (64, 96), 128: (64, 80, 96, 112, 128)}


@dataclass(frozen=True)
class ResidentShape:
    """Derived sizes. ``widths``: rows of the instructions. ``unit_panels``: panels of a unit; ``units``: of a row tile."""

    consumers: int
    widths: tuple[int, ...]
    group_steps: int
    unit_panels: int
    units: int
    threads: int
    row_panels: int
    k_blocks: int
    shared_bytes: int


def shape(problem: object, schedule: Schedule) -> ResidentShape:
    """Derived sizes of ``schedule`` on ``problem``; meaningful for legal schedules only."""
    bm = schedule.bm
    row_panels = panels_of(problem.n, problem.interleaved)
    k_blocks = -(-problem.k // UNIT_K)
    unit_panels = -(-row_panels // max(round(row_panels / _UNIT_PANELS), 1))
    consumers = 3 if bm <= _MOST_OF_THREE else 2
    staging = -(-consumers * bm * (80 if problem.swiglu else 144) // 128) * 128
    ring = schedule.stages * k_blocks * BLOCK_BYTES
    shared = 2 * bm * 128 * k_blocks + staging + ring + 2 * bm * 12 + 2 * 32 + (2 * schedule.stages + 6) * 8
    return ResidentShape(
        consumers, _WIDTHS.get(bm, ()), 1, unit_panels, -(-row_panels // unit_panels), (consumers + 1) * 128,
        row_panels, k_blocks, shared,
    )  # fmt: skip


def violations(problem: object, schedule: Schedule) -> list[str]:
    """Every rule that ``schedule`` breaks on ``problem``, in words that name the rule and the values; empty when legal."""
    broken = []
    if problem.facts.arch != "sm_90a":
        broken.append(f"kernel w4a16_resident runs on sm_90a only, got {problem.facts.arch}")
    if problem.layout != "indexed":
        broken.append(f"kernel w4a16_resident serves indexed rows only, got {problem.layout}")
    if schedule.bm not in _WIDTHS:
        broken.append(f"BM must be one of {', '.join(map(str, _WIDTHS))}, got {schedule.bm}")
    elif problem.block_m and problem.block_m % schedule.bm:
        broken.append(f"BM must divide the routing's block_m, got BM={schedule.bm} and block_m={problem.block_m}")
    if schedule.bn != PANEL:
        broken.append(f"BN must be {PANEL}, got {schedule.bn}")
    sizes = shape(problem, schedule)
    if schedule.bk != sizes.k_blocks * UNIT_K:
        broken.append(f"BK must be the padded K, got BK={schedule.bk} and K={sizes.k_blocks * UNIT_K}")
    # A warpgroup waits for its own panels alone. It passes those of the others by parity, which tells one phase from the next but not
    # from the one after: with fewer stages than warpgroups it would take a panel that has not landed for one that has.
    if not sizes.consumers <= schedule.stages <= 16:
        broken.append(f"STAGES must lie in {sizes.consumers}..16, a stage for each warpgroup, got {schedule.stages}")
    if (schedule.cm, schedule.cn, schedule.split, schedule.ctas) != (1, 1, 1, 1):
        given = f"CM={schedule.cm}, CN={schedule.cn}, SPLIT={schedule.split}, CTAS={schedule.ctas}"
        broken.append(f"CM, CN, SPLIT and CTAS must be 1, got {given}")
    if not broken and sizes.shared_bytes > problem.facts.shared_bytes:
        broken.append(f"shared memory must fit one CTA an SM, got {sizes.shared_bytes} of {problem.facts.shared_bytes} bytes")
    return broken
