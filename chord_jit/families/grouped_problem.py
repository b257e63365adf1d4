"""What a grouped call asks for, and the kernels that may serve it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar

from chord_jit import knobs
from chord_jit.device import DeviceFacts
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import cost, legality, resolver, table, wgmma
from chord_jit.schedules.schedule import Schedule

_SOURCES = {"masked": "kMasked", "offsets": "kOffsets", "blocks": "kBlocks"}

#: Output tile and stage of w4a16_wgmma by token tile: what was worth timing (docs/lab.md).
_TILES = {
    16: ((512, 128), (256, 256), (256, 128)), 32: ((512, 128), (256, 128)), 48: ((256, 128),), 64: ((256, 128), (256, 64), (128, 128)),
    96: ((256, 128), (256, 64)), 128: ((256, 128), (256, 64), (128, 128), (128, 64)), 160: ((256, 128), (256, 64)),
    192: ((128, 128), (128, 64)), 256: ((128, 64),),
}  # fmt: skip


@dataclass(frozen=True)
class GroupedProblem:
    """One grouped W4A16 GEMM: shapes and wishes, nothing read from the device.

    ``n``, ``k``: logical output features (gate and up together) and inputs. ``expected_rows``: rows per expert, an
    estimate that only steers the choice. ``layout``: masked, offsets or blocks. ``dequant``: of the m16n8k16 kernel.
    """

    facts: DeviceFacts
    experts: int
    n: int
    k: int
    expected_rows: float
    layout: str
    interleaved: bool = False
    swiglu: bool = False
    dequant: str = "subnormal"

    family: ClassVar[str] = "grouped"
    block_m: ClassVar[int] = 0  # no routing fixes a block size


def candidates(problem: GroupedProblem) -> tuple[Schedule, ...]:
    """Every legal schedule worth timing."""
    return _legal(replace(problem, expected_rows=0.0))


@lru_cache(maxsize=256)
def _legal(problem: GroupedProblem) -> tuple[Schedule, ...]:
    every = (
        Schedule("w4a16_wgmma", bm, bn, bk, stages, split=split)
        for bm, tiles in _TILES.items()
        for (bn, bk), stages, split in product(tiles, (3, 4, 5, 6, 2), (2, 1))
    )
    return tuple(schedule for schedule in every if not legality.violations(problem, schedule))


def choose(problem: GroupedProblem) -> Schedule:
    """Override, table, cost model; memoised until a knob changes."""
    return _choose(problem, knobs.generation)


@lru_cache(maxsize=8192)
def _choose(problem: GroupedProblem, generation: int) -> Schedule:
    return resolver.resolve(problem, table=_measured, candidates=candidates, violations=legality.violations, cost=cost.estimate)


def _measured(problem: GroupedProblem) -> Schedule | None:
    found = (
        table.find(
            kernel, arch=problem.facts.arch, sms=problem.facts.sms, layout=problem.layout, n=problem.n, k=problem.k,
            experts=problem.experts, swiglu=problem.swiglu, rows=problem.expected_rows * problem.experts,
        )
        for kernel in ("w4a16_wgmma", "w4a16_mma")
    )  # fmt: skip
    return next(filter(None, found), None)


def spec(problem: GroupedProblem, schedule: Schedule) -> KernelSpec:
    """The kernel of ``schedule``: compile-time facts alone, so one cubin serves every row, expert and SM count."""
    sizes = wgmma.shape(problem, schedule)
    config = (
        ("kN", problem.n), ("kK", problem.k), ("kInterleaved", problem.interleaved), ("kSwiglu", problem.swiglu),
        ("kRows", f"chord::RowSource::{_SOURCES[problem.layout]}"), ("kBM", schedule.bm),
        ("kWidths", f"chord::Widths<{', '.join(map(str, sizes.widths))}>{{}}"), ("kBoxRows", sizes.box_rows), ("kPanels", sizes.panels),
        ("kStageBlocks", sizes.stage_blocks), ("kStages", schedule.stages), ("kConsumers", sizes.consumers),
        ("kGroupSteps", sizes.group_steps), ("kStagedBlocks", sizes.staged), ("kCuts", schedule.split == 2),
        ("kThreads", sizes.threads), ("kSharedBytes", sizes.shared_bytes),
    )  # fmt: skip
    return KernelSpec(schedule.kernel, config, problem.facts.arch)
