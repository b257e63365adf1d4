"""What an indexed call asks for, and the kernels that may serve it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from chord_jit import knobs
from chord_jit.device import DeviceFacts
from chord_jit.errors import OverrideError
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


#: Up to here expected rows per expert are taken as they are: decode, where one row more can want another tile.
_EXACT_ROWS = 8
#: The sizes above: half powers of two up to 512 rows, where every tile is full. Neighbours may share a schedule ...
_ROUNDED = tuple(2 ** (half / 2) for half in range(7, 19))
#: ... but below this only where the routing's block is given. The block is gate/up's tile, and down's must divide it: a tile
#: that is a little too tall for gate/up can cost down a third.
_FREE_BLOCK = 64


def size_for(rows: float) -> float:
    """The rows per expert that stand for ``rows`` when a schedule is chosen: above 8 the nearest half power of two, 512 at most.

    So a prefill whose row count changes at every step meets no kernel that warm-up has not built.
    """
    return rows if rows <= _EXACT_ROWS else min(2 ** (round(2 * math.log2(rows)) / 2), _ROUNDED[-1])


def dequant_for(arch: str) -> str:
    """The dequantisation of ``CHORD_W4A16_DEQUANT``, or the architecture's own."""
    return knobs.read("CHORD_W4A16_DEQUANT") or DEQUANT.get(arch, "magic")


def candidates(problem: IndexedProblem) -> tuple[Schedule, ...]:
    """Every legal schedule worth timing; of each kernel those that won elsewhere come first."""
    return _legal(replace(problem, expected_rows=0.0))


@lru_cache(maxsize=256)
def _legal(problem: IndexedProblem) -> tuple[Schedule, ...]:
    return (*kernels.mma_schedules(problem, (1, 2, 3, 4)), *kernels.wgmma_schedules(problem), *kernels.resident_schedules(problem))


#: A block size of down's own must gain this much over that of gate/up: the model is no better than that.
_WORTH = 1.1


def shared_block_m(gate_up: IndexedProblem, down: IndexedProblem) -> int:
    """The block size of one routing for both projections, whose own are still free: that of gate/up, or of down where the cost
    model says that the two together gain by it and gate/up's was not measured."""
    own, other = choose(gate_up).bm, choose(down).bm

    def together(block_m: int) -> float:
        asked = (replace(problem, block_m=block_m) for problem in (gate_up, down))
        try:
            return sum(cost.estimate(problem, choose(problem)) for problem in asked)
        except OverrideError:  # what the variables ask for does not go with this block
            return math.inf

    if own == other or _measured(gate_up) is not None:
        return own
    return other if together(other) * _WORTH < together(own) else own


def choose(problem: IndexedProblem) -> Schedule:
    """Override, table, cost model; memoised until a knob changes."""
    return _choose(problem, knobs.generation)


@lru_cache(maxsize=8192)
def _choose(problem: IndexedProblem, generation: int) -> Schedule:
    return resolver.resolve(
        problem, table=_measured, candidates=candidates, violations=legality.violations, cost=cost.estimate, model=_model, bases=_bases
    )


def _bases(problem: IndexedProblem) -> tuple[Schedule, ...]:
    """Of any block: a variable that names BM replaces what would not divide this one."""
    return candidates(replace(problem, block_m=0))


def _model(problem: IndexedProblem) -> Schedule | None:
    """What neighbouring sizes share; ``None`` where they share nothing."""
    if problem.expected_rows < (_ROUNDED[0] if problem.block_m else _FREE_BLOCK):
        return None
    return _by_size(replace(problem, expected_rows=0.0)).get(problem.expected_rows)


@lru_cache(maxsize=256)
def _by_size(problem: IndexedProblem) -> dict[float, Schedule]:
    return kernels.by_size(problem, _ROUNDED, _measured, candidates)


def _measured(problem: IndexedProblem) -> Schedule | None:
    found = table.fastest(problem)
    # A row is measured without routing weights; with them the same form may spill.
    spills = found is not None and found.kernel == "w4a16_mma" and kernels.mma_spills(problem, found)
    return None if spills else found
