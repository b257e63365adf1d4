"""Problems for the tests of the choice: one plain example, any problem that a packed weight allows, Kimi K2's layers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies

from chord_jit import device
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.grouped_problem import GroupedProblem
from chord_jit.families.indexed import FAMILY
from chord_jit.families.indexed_problem import IndexedProblem
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule

H200 = device.target("sm_90a")
SM_COUNTS = (78, 114, 132, 148, 160)
LAYOUTS = ("masked", "offsets", "blocks")
#: Kimi K2 over the usual ranks.
KIMI = {f"{name}{ranks}".upper(): Deployment(7168, 2048, 384, 8, **{name: ranks}) for name in ("ep", "tp") for ranks in (8, 16)}


def problem(
    *, sms: int = 132, arch: str = "sm_90a", experts: int = 8, n: int = 1024, k: int = 4096, rows: float = 3.0, **flags
) -> IndexedProblem:
    """A problem that no table row serves, with every field open to a test."""
    return FAMILY.problem(replace(device.target(arch), sms=sms), experts, n, k, rows, **flags)


def schedule(bm: int = 8, bn: int = 128, bk: int = 512, stages: int = 3, **fields) -> Schedule:
    """A ``w4a16_mma`` schedule, by default one that every problem of ``problem()`` allows."""
    return Schedule("w4a16_mma", bm, bn, bk, stages, **fields)


@strategies.composite
def problems(draw) -> IndexedProblem:
    """Anything that a packed weight, a routing and a GPU of the three architectures can ask for."""
    interleaved = draw(strategies.booleans())
    return problem(
        sms=draw(strategies.integers(78, 160)),
        arch=draw(strategies.sampled_from(sorted(device.TARGETS))),
        experts=draw(strategies.integers(1, 1025)),
        n=8 * draw(strategies.integers(1, 1024)),
        k=32 * draw(strategies.integers(1, 256)),
        rows=draw(strategies.floats(0, 1000)),
        block_m=8 * draw(strategies.integers(0, 16)),
        interleaved=interleaved,
        swiglu=interleaved and draw(strategies.booleans()),
        weighted=draw(strategies.booleans()),
    )


def grouped(
    *, sms: int = 132, arch: str = "sm_90a", experts: int = 8, n: int = 1024, k: int = 4096, rows: float = 64.0,
    layout: str = "offsets", **flags,
) -> GroupedProblem:
    """A grouped problem that no table row serves, with every field open to a test."""
    return GROUPED.problem(replace(device.target(arch), sms=sms), experts, n, k, rows, layout=layout, **flags)


def wgmma_schedule(bm: int = 64, bn: int = 128, bk: int = 128, stages: int = 4, **fields) -> Schedule:
    """A ``w4a16_wgmma`` schedule, by default one that ``grouped()`` allows in every layout."""
    return Schedule("w4a16_wgmma", bm, bn, bk, stages, **fields)


def resident_schedule(bm: int = 64, bk: int = 256, stages: int = 4, **fields) -> Schedule:
    """A ``w4a16_resident`` schedule, by default one that ``problem(k=256)`` allows."""
    return Schedule("w4a16_resident", bm, 128, bk, stages, **fields)


@strategies.composite
def grouped_problems(draw, archs: tuple[str, ...] = ("sm_90a",)) -> GroupedProblem:
    """Anything that a packed weight, a layout of rows and a GPU of ``archs`` can ask for."""
    interleaved = draw(strategies.booleans())
    return grouped(
        sms=draw(strategies.integers(78, 200)),
        arch=draw(strategies.sampled_from(archs)),
        experts=draw(strategies.integers(1, 1025)),
        n=8 * draw(strategies.integers(1, 1024)),
        k=32 * draw(strategies.integers(1, 256)),
        rows=draw(strategies.floats(0, 1000)),
        layout=draw(strategies.sampled_from(LAYOUTS)),
        interleaved=interleaved,
        swiglu=interleaved and draw(strategies.booleans()),
    )
