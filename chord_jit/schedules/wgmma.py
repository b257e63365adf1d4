"""What a ``w4a16_wgmma`` schedule means in the kernel's own terms, and every rule that it must keep.

Shared memory is counted as the kernel lays it out; the kernel asserts at compile time that both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chord_jit.formats.w4a16_layout import BLOCK_BYTES, PANEL, UNIT_K, panels_of
from chord_jit.schedules.schedule import Schedule

#: Rows of the padded blocks of the "blocks" layout: no tile may cut one.
BLOCK_ROWS = 128
#: Warpgroups of a launch whose joints a slot holds (``jit/slots.py``).
MAX_JOINTS = 704

#: Instruction widths of a kernel whose warpgroups own two m64 blocks, by BM. Each width is a main loop of its own, and the
#: assembler gives every loop's fragments registers of their own: more loops than these do not fit.
_WIDE = {16: (16,), 32: (16, 32), 48: (32, 48), 64: (32, 48, 64), 96: (32, 64, 96), 128: (64, 80, 96, 112, 128), 160: (112, 128, 144, 160)}
#: Rows of one tensor copy where narrow widths are worth a copy of their own; else as many of 64 as divide BM.
_BOX_ROWS = {32: 16, 48: 16, 64: 32}
#: With one m64 block a warpgroup eight loops fit: fine steps near the tile's own rows, where most tiles of uneven experts end.
_SINGLE = {
    32: (16, 32), 64: (16, 32, 48, 64), 128: (16, 32, 48, 64, 80, 96, 112, 128), 192: (64, 96, 128, 144, 160, 176, 192),
    256: (64, 128, 160, 192, 208, 224, 240, 256),
}  # fmt: skip
#: Most token rows by output tile: what the sums of a consumer leave room for.
_MOST_ROWS = {128: 256, 256: 160, 512: 48}


@dataclass(frozen=True)
class WgmmaShape:
    """Derived sizes. ``widths``: rows of the instructions. ``staged``: m64 blocks of a warpgroup staged at a time.

    ``box_rows``: rows of one tensor copy. ``sums_bytes``: what a cut tile leaves in memory for each CTA.
    """

    panels: int
    stage_blocks: int
    consumers: int
    widths: tuple[int, ...]
    group_steps: int
    staged: int
    box_rows: int
    threads: int
    row_panels: int
    k_blocks: int
    tile_stages: int
    shared_bytes: int
    sums_bytes: int


def shape(problem: object, schedule: Schedule) -> WgmmaShape:
    """Derived sizes of ``schedule`` on ``problem``; meaningful for legal schedules only."""
    panels, stage_blocks, bm = schedule.bn // PANEL, schedule.bk // UNIT_K, schedule.bm
    consumers = 4 if panels == 4 else 2
    owned = max(panels * 2 // consumers, 1)
    row_panels = panels_of(problem.n, problem.interleaved)
    k_blocks = -(-problem.k // UNIT_K)
    ring = schedule.stages * stage_blocks * (bm * 128 + panels * BLOCK_BYTES)
    record = 32 + (bm * 12 if problem.layout == "indexed" else 0)
    rest = (schedule.stages + 1) * record + schedule.stages * 16 + 16

    def shared(staged: int) -> int:
        pitch = staged * (64 if problem.swiglu else 128) + 16
        return ring + -(-consumers * bm * pitch // 128) * 128 + rest

    staged = owned if shared(owned) <= shared_limit(problem, schedule) else 1
    return WgmmaShape(
        panels, stage_blocks, consumers, _widths(bm, owned), _group_steps(bm), staged, _BOX_ROWS.get(bm, math.gcd(bm, 64)),
        (consumers + 1) * 128, row_panels, k_blocks, k_blocks // max(stage_blocks, 1), shared(staged), bm * schedule.bn * 4,
    )  # fmt: skip


def shared_limit(problem: object, schedule: Schedule) -> int:
    """Most shared memory of one CTA where ``schedule.ctas`` of them share an SM."""
    return min(problem.facts.shared_bytes, problem.facts.shared_per_sm // max(schedule.ctas, 1) - 1024)


def _widths(bm: int, owned: int) -> tuple[int, ...]:
    return (_WIDE if owned == 2 else _SINGLE).get(bm, ())


def _group_steps(bm: int) -> int:
    """k16 steps of one group of products: more hide the wait, fewer leave registers for the sums."""
    return 1 if bm >= 128 or bm == 48 else 2


def violations(problem: object, schedule: Schedule) -> list[str]:
    """Every rule that ``schedule`` breaks on ``problem``, in words that name the rule and the values; empty when legal."""
    broken = []
    if problem.facts.arch != "sm_90a":
        broken.append(f"kernel w4a16_wgmma runs on sm_90a only, got {problem.facts.arch}")
    if schedule.bn not in _MOST_ROWS:
        broken.append(f"BN must be one of {', '.join(map(str, _MOST_ROWS))}, got {schedule.bn}")
    else:
        known = tuple(_SINGLE) if schedule.bn == PANEL else tuple(bm for bm in _WIDE if bm <= _MOST_ROWS[schedule.bn])
        if schedule.bm not in known:
            broken.append(f"BM must be one of {', '.join(map(str, known))} at BN={schedule.bn}, got {schedule.bm}")
    if schedule.bk not in (64, 128, 256):
        broken.append(f"BK must be 64, 128 or 256, got {schedule.bk}")
    if not 2 <= schedule.stages <= 16:
        broken.append(f"STAGES must lie in 2..16, got {schedule.stages}")
    if schedule.cm != 1 or schedule.cn not in (1, 2):
        broken.append(f"CM must be 1 and CN 1 or 2 (two CTAs share rows by multicast), got CM={schedule.cm}, CN={schedule.cn}")
    elif schedule.cn != 1 and problem.layout == "indexed":
        broken.append(f"CN must be 1 on indexed rows (gathered rows reach one CTA), got {schedule.cn}")
    if schedule.split not in (1, 2):
        broken.append(f"SPLIT must be 1 or 2 (2 cuts the tiles of the last waves along K), got {schedule.split}")
    if schedule.ctas not in (1, 2) or schedule.ctas == 2 and (schedule.bm, schedule.bn) != (16, 256):
        broken.append(f"CTAS must be 1, or 2 at BM=16 and BN=256 (registers), got {schedule.ctas}")
    if problem.block_m and problem.block_m % max(schedule.bm, 1):
        broken.append(f"BM must divide the routing's block_m, got BM={schedule.bm} and block_m={problem.block_m}")
    if problem.layout == "blocks" and schedule.bm not in (16, 32, 64, BLOCK_ROWS, 2 * BLOCK_ROWS):
        broken.append(f"BM must divide the blocks of {BLOCK_ROWS} rows or be two of them, got {schedule.bm}")
    return broken or _derived(problem, schedule)


def _derived(problem: object, schedule: Schedule) -> list[str]:
    sizes, broken = shape(problem, schedule), []
    if sizes.row_panels % (sizes.panels * schedule.cn):
        width = sizes.row_panels * PANEL
        broken.append(f"BN times CN must divide the padded output width, got BN={schedule.bn}, CN={schedule.cn} and {width} rows")
    if sizes.k_blocks % sizes.stage_blocks:
        broken.append(f"BK must divide the padded K, got BK={schedule.bk} and K={sizes.k_blocks * UNIT_K}")
    limit = shared_limit(problem, schedule)
    if sizes.shared_bytes > limit:
        broken.append(f"shared memory must fit {schedule.ctas} CTA(s) an SM, got {sizes.shared_bytes} of {limit} bytes")
    joints = problem.facts.sms * schedule.ctas * sizes.consumers
    if schedule.split == 2 and joints > MAX_JOINTS:
        broken.append(f"SPLIT must be 1 with more than {MAX_JOINTS} warpgroups, got SPLIT={schedule.split} and {joints} warpgroups")
    return broken
