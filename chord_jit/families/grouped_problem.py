"""What a grouped call asks for, and the kernels that may serve it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from chord_jit import knobs
from chord_jit.device import DeviceFacts
from chord_jit.families import kernels
from chord_jit.families.grouped_sizes import sizes
from chord_jit.schedules import cost, legality, resolver, table
from chord_jit.schedules.schedule import Schedule


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
    weighted: ClassVar[bool] = False


def candidates(problem: GroupedProblem) -> tuple[Schedule, ...]:
    """Every legal schedule worth timing."""
    return _legal(replace(problem, expected_rows=0.0))


@lru_cache(maxsize=256)
def _legal(problem: GroupedProblem) -> tuple[Schedule, ...]:
    return (*kernels.wgmma_schedules(problem), *kernels.mma_schedules(problem, (1,)))


def choose(problem: GroupedProblem) -> Schedule:
    """Override, table, cost model; memoised until a knob changes."""
    return _choose(problem, knobs.generation)


@lru_cache(maxsize=8192)
def _choose(problem: GroupedProblem, generation: int) -> Schedule:
    return resolver.resolve(
        problem, table=table.fastest, candidates=candidates, violations=legality.violations, cost=cost.estimate, model=_model
    )


def _model(problem: GroupedProblem) -> Schedule | None:
    return _by_size(replace(problem, expected_rows=0)).get(problem.expected_rows)


@lru_cache(maxsize=256)
def _by_size(problem: GroupedProblem) -> dict[int, Schedule]:
    return kernels.by_size(problem, sizes(problem.layout), table.fastest, candidates)
