"""What an indexed call asks for, and the kernels that may serve it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar

from chord_jit import knobs
from chord_jit.device import DeviceFacts
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import cost, legality, resolver, table
from chord_jit.schedules.schedule import Schedule

#: Dequantisation by architecture: subnormal BF16 inputs of HMMA were shown exact on the H200 only.
DEQUANT = {"sm_90a": "subnormal"}
_ENUMERATOR = {"subnormal": "kSubnormal", "magic": "kMagic", "scaled": "kScaled"}


@dataclass(frozen=True)
class IndexedProblem:
    """One indexed W4A16 GEMM: shapes and wishes, nothing read from the device.

    ``n``, ``k``: logical output features (gate and up together) and inputs. ``experts``: of the packed weight.
    ``block_m``: of the routing, 0 while it is still free. ``expected_rows``: routed rows per expert of this weight, an
    estimate that only steers the choice. ``dequant``: subnormal, magic or scaled.
    """

    facts: DeviceFacts
    experts: int
    n: int
    k: int
    expected_rows: float
    block_m: int = 0
    interleaved: bool = False
    swiglu: bool = False
    weighted: bool = False
    dequant: str = "subnormal"

    family: ClassVar[str] = "indexed"


def dequant_for(arch: str) -> str:
    """The dequantisation of ``CHORD_W4A16_DEQUANT``, or the architecture's own."""
    return knobs.read("CHORD_W4A16_DEQUANT") or DEQUANT.get(arch, "magic")


def candidates(problem: IndexedProblem) -> tuple[Schedule, ...]:
    """Every legal ``w4a16_mma`` schedule worth timing, about two hundred at most; those that won elsewhere come first."""
    return _legal(replace(problem, expected_rows=0.0))


@lru_cache(maxsize=256)
def _legal(problem: IndexedProblem) -> tuple[Schedule, ...]:
    tiles = ((128, 512), (128, 256), (256, 256), (256, 128), (512, 128), (512, 64))
    every = (
        Schedule("w4a16_mma", bm, bn, bk, stages, split=split, ctas=ctas)
        for split, bm, (bn, bk), ctas, stages in product((1, 2, 3, 4), (16, 8), tiles, (1, 2), (3, 4, 6, 2))
    )
    return tuple(schedule for schedule in every if not legality.violations(problem, schedule) and not spills(problem, schedule))


def spills(problem: IndexedProblem, schedule: Schedule) -> bool:
    """Whether the compiler gives a legal schedule local memory, which no kernel that is chosen may have.

    Read off NVRTC 13.0 (``tests/unit/kernels``): eight resident consumer warps an SM run out of registers with the
    dequantisation used off Hopper, with 16-row tiles whose last stage is partly empty, and with routing weights on short
    tiles of plain weights.
    """
    shape = legality.mma_shape(problem, schedule)
    if shape.warps * schedule.ctas < 8:
        return False
    if problem.facts.arch != "sm_90a":
        return True
    partly_empty = shape.tile_stages > 1 and shape.k_blocks % shape.stage_blocks != 0
    short = problem.weighted and not problem.interleaved and schedule.ctas == 1 and shape.tile_stages < 8
    return schedule.bm == 16 and (partly_empty or short)


def choose(problem: IndexedProblem) -> Schedule:
    """Override, table, cost model; memoised until a knob changes."""
    return _choose(problem, knobs.generation)


@lru_cache(maxsize=8192)
def _choose(problem: IndexedProblem, generation: int) -> Schedule:
    return resolver.resolve(problem, table=_measured, candidates=candidates, violations=legality.violations, cost=cost.mma_cost)


def _measured(problem: IndexedProblem) -> Schedule | None:
    found = table.find(
        "w4a16_mma", arch=problem.facts.arch, sms=problem.facts.sms, layout="indexed", n=problem.n, k=problem.k,
        experts=problem.experts, swiglu=problem.swiglu, rows=problem.expected_rows * problem.experts,
    )  # fmt: skip
    # A row is measured without routing weights; with them the same form may spill.
    return None if found is None or spills(problem, found) else found


def spec(problem: IndexedProblem, schedule: Schedule) -> KernelSpec:
    """The kernel of ``schedule``: compile-time facts alone, so one cubin serves every row, expert and SM count."""
    shape = legality.mma_shape(problem, schedule)
    config = (
        ("kN", problem.n), ("kK", problem.k), ("kInterleaved", problem.interleaved), ("kSwiglu", problem.swiglu),
        ("kWeighted", problem.weighted), ("kDequant", f"chord::Dequant::{_ENUMERATOR[problem.dequant]}"), ("kBM", schedule.bm),
        ("kPanels", shape.panels), ("kStageBlocks", shape.stage_blocks), ("kStages", schedule.stages), ("kSplit", schedule.split),
        ("kCtas", schedule.ctas), ("kThreads", shape.threads), ("kSharedBytes", shape.shared_bytes),
    )  # fmt: skip
    return KernelSpec(schedule.kernel, config, problem.facts.arch)
