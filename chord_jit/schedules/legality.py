"""The one statement of what a schedule may be: tables, overrides, the cost model, tuners and tests all ask here.

Shared memory is counted as the kernel lays it out; the kernel asserts at compile time that both agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chord_jit.device import DeviceFacts
from chord_jit.formats.w4a16_layout import BLOCK_BYTES, PANEL, UNIT_K, panels_of
from chord_jit.schedules import resident, wgmma
from chord_jit.schedules.schedule import Schedule

#: Barriers of a ring take 16 bytes a stage; more stages than this never paid and would hide a mistake.
MAX_STAGES = 16
#: Most CTAs of one cluster that every Hopper and Blackwell part schedules without an opt-in.
MAX_CLUSTER = 8


class W4A16Problem(Protocol):
    """The part of a W4A16 problem that legality and the cost model read."""

    facts: DeviceFacts
    n: int
    k: int
    experts: int
    expected_rows: float
    block_m: int
    interleaved: bool
    swiglu: bool
    layout: str


@dataclass(frozen=True)
class MmaShape:
    """What a ``w4a16_mma`` schedule means for one problem, in the kernel's own terms."""

    panels: int
    stage_blocks: int
    warps: int
    threads: int
    row_panels: int
    k_blocks: int
    tile_stages: int
    shared_bytes: int


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def mma_shape(problem: W4A16Problem, schedule: Schedule) -> MmaShape:
    """Derived sizes of ``schedule`` on ``problem``; meaningful for legal schedules only."""
    panels, stage_blocks = schedule.bn // PANEL, schedule.bk // UNIT_K
    warps = panels * stage_blocks
    row_panels = panels_of(problem.n, problem.interleaved)
    k_blocks = -(-problem.k // UNIT_K)
    stage = _up(warps * BLOCK_BYTES + schedule.bm * (stage_blocks * 128 + 16), 128)
    reduction = warps * 8 * (PANEL + 4) * 4
    receive = (schedule.split - 1) * schedule.bm * panels * PANEL * 4
    records = schedule.stages * stage + reduction + receive
    barriers = _up(records + (schedule.stages + 1) * (16 + schedule.bm * 4), 16)
    zero_row = _up(barriers + (2 * schedule.stages + 2) * 8, 16)
    return MmaShape(
        panels, stage_blocks, warps, (warps + 4) * 32, row_panels, k_blocks, -(-k_blocks // max(stage_blocks, 1)), zero_row + 128
    )


def violations(problem: W4A16Problem, schedule: Schedule) -> list[str]:
    """Every rule that ``schedule`` breaks on ``problem``, in words that name the rule and the values; empty when legal."""
    rules = _RULES.get(schedule.kernel)
    return rules(problem, schedule) if rules else [f"kernel {schedule.kernel} is unknown"]


def _mma_violations(problem: W4A16Problem, schedule: Schedule) -> list[str]:
    broken = []
    if schedule.bm not in (8, 16):
        broken.append(f"BM must be 8 or 16, got {schedule.bm}")
    elif problem.block_m and problem.block_m % schedule.bm:
        broken.append(f"BM must divide the routing's block_m, got BM={schedule.bm} and block_m={problem.block_m}")
    if schedule.bn < PANEL or schedule.bn % PANEL:
        broken.append(f"BN must be a multiple of {PANEL}, got {schedule.bn}")
    if schedule.bk < UNIT_K or schedule.bk % UNIT_K:
        broken.append(f"BK must be a multiple of {UNIT_K}, got {schedule.bk}")
    if not 2 <= schedule.stages <= MAX_STAGES:
        broken.append(f"STAGES must lie in 2..{MAX_STAGES}, got {schedule.stages}")
    if schedule.cm != 1 or schedule.cn != 1:
        broken.append(f"CM and CN must be 1 (this kernel shares nothing by multicast), got CM={schedule.cm}, CN={schedule.cn}")
    if not 1 <= schedule.split <= MAX_CLUSTER:
        broken.append(f"SPLIT must lie in 1..{MAX_CLUSTER}, got {schedule.split}")
    elif schedule.split > 1 and problem.layout != "indexed":
        broken.append(f"SPLIT must be 1 for the m16n8k16 kernel on {problem.layout} rows, got {schedule.split}")
    if schedule.ctas not in (1, 2):
        broken.append(f"CTAS must be 1 or 2, got {schedule.ctas}")
    return broken or _derived(problem, schedule)


def _derived(problem: W4A16Problem, schedule: Schedule) -> list[str]:
    shape, broken = mma_shape(problem, schedule), []
    if shape.warps not in (4, 8):
        broken.append(f"BN/128 * BK/64 must be 4 or 8 warps, got {shape.warps}")
    if shape.row_panels % shape.panels:
        broken.append(f"BN must divide the padded output width, got BN={schedule.bn} and {shape.row_panels * PANEL} rows")
    if schedule.split > shape.tile_stages:
        broken.append(f"SPLIT must not exceed the stages of K, got SPLIT={schedule.split} and {shape.tile_stages} stages of {schedule.bk}")
    if schedule.split > problem.facts.sms * schedule.ctas:
        broken.append(f"SPLIT must not exceed the resident CTAs, got SPLIT={schedule.split} and {problem.facts.sms} SMs x {schedule.ctas}")
    if schedule.ctas * shape.warps > 8:
        broken.append(f"CTAS times warps must not exceed 8 (registers), got {schedule.ctas} * {shape.warps}")
    limit = wgmma.shared_limit(problem, schedule)
    if shape.shared_bytes > limit:
        broken.append(f"shared memory must fit {schedule.ctas} CTA(s) an SM, got {shape.shared_bytes} of {limit} bytes")
    return broken


def _no_violations(problem: object, schedule: Schedule) -> list[str]:
    return []


_RULES = {"w4a16_mma": _mma_violations, "w4a16_wgmma": wgmma.violations, "w4a16_resident": resident.violations}
#: Kernels of one form.
_RULES |= dict.fromkeys(("route_rows", "move_rows", "combine_rows"), _no_violations)
