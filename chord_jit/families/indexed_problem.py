"""What an indexed call asks for, and the kernels that may serve it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from chord_jit import knobs
from chord_jit.device import DeviceFacts
from chord_jit.families import kernels
from chord_jit.schedules import cost, legality, resolver, table
from chord_jit.schedules.schedule import Schedule

#: Dequantisation by architecture: subnormal BF16 inputs of HMMA were shown exact on the H200 only.
DEQUANT = {"sm_90a": "subnormal"}


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
    layout: ClassVar[str] = "indexed"


def dequant_for(arch: str) -> str:
    """The dequantisation of ``CHORD_W4A16_DEQUANT``, or the architecture's own."""
    return knobs.read("CHORD_W4A16_DEQUANT") or DEQUANT.get(arch, "magic")


def candidates(problem: IndexedProblem) -> tuple[Schedule, ...]:
    """Every legal ``w4a16_mma`` schedule worth timing, about two hundred at most; those that won elsewhere come first."""
    return _legal(replace(problem, expected_rows=0.0))


@lru_cache(maxsize=256)
def _legal(problem: IndexedProblem) -> tuple[Schedule, ...]:
    return tuple(kernels.mma_schedules(problem, (1, 2, 3, 4)))


def choose(problem: IndexedProblem) -> Schedule:
    """Override, table, cost model; memoised until a knob changes."""
    return _choose(problem, knobs.generation)


@lru_cache(maxsize=8192)
def _choose(problem: IndexedProblem, generation: int) -> Schedule:
    return resolver.resolve(problem, table=_measured, candidates=candidates, violations=legality.violations, cost=cost.estimate)


def _measured(problem: IndexedProblem) -> Schedule | None:
    found = table.find(
        "w4a16_mma", arch=problem.facts.arch, sms=problem.facts.sms, layout="indexed", n=problem.n, k=problem.k,
        experts=problem.experts, swiglu=problem.swiglu, rows=problem.expected_rows * problem.experts,
    )  # fmt: skip
    # A row is measured without routing weights; with them the same form may spill.
    return None if found is None or kernels.mma_spills(problem, found) else found
