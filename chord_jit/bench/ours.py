"""Our side of a case: the public call, or one named schedule for a tuner."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch

from chord_jit import api
from chord_jit.bench.cases import Case
from chord_jit.bench.workload import Inputs
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError
from chord_jit.families.indexed import FAMILY, IndexedFamily
from chord_jit.families.indexed_problem import IndexedProblem
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.routing.indexed import IndexedRouting
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule

_OVERRIDABLE = tuple(field.name for field in fields(Schedule) if field.name != "kernel")
#: Fields that a schedule prints by name, and only where they are not 1.
_NAMED = tuple(name for name in _OVERRIDABLE if name not in ("bm", "bn", "bk", "stages"))
_TEXT = re.compile(rf"(?P<kernel>\w+) (?P<bm>\d+)x(?P<bn>\d+)x(?P<bk>\d+) s(?P<stages>\d+)(?P<rest>( ({'|'.join(_NAMED)})\d+)*)")


@dataclass(frozen=True, eq=False)
class Bound:
    """One call with everything it needs; calling it enqueues. ``out`` is NaN where nothing was written yet."""

    call: Callable[[], object]
    out: torch.Tensor
    routing: IndexedRouting
    schedule: Schedule


def parse(text: str) -> Schedule:
    """The schedule that prints as ``text``, e.g. ``w4a16_mma 16x128x256 s3 ctas2``. Raises ``InputError``."""
    found = _TEXT.fullmatch(" ".join(text.split()))
    if not found:
        raise InputError(
            "read a schedule", f"it must look like 'KERNEL BMxBNxBK sSTAGES' and then any of {', '.join(_NAMED)}", {"text": repr(text)},
            "write it as a schedule prints itself: 'w4a16_mma 16x128x256 s3 ctas2'",
        )
    tile = {name: int(found[name]) for name in ("bm", "bn", "bk", "stages")}
    rest = dict(re.fullmatch(r"([a-z]+)(\d+)", part).groups() for part in found["rest"].split())
    return Schedule(found["kernel"], **tile, **{name: int(value) for name, value in rest.items()})


def overrides(schedule: Schedule) -> dict[str, str]:
    """``CHORD_W4A16_*`` variables that force ``schedule``, for ``knobs.scope``."""
    return {f"CHORD_W4A16_{name.upper()}": str(getattr(schedule, name)) for name in _OVERRIDABLE}


class Fixed(IndexedFamily):
    """The indexed family with one schedule for every problem: what lets schedules take turns within one process."""

    def __init__(self, schedule: Schedule):
        super().__init__()
        self._schedule = schedule

    def schedule(self, problem: IndexedProblem) -> Schedule:
        """The fixed schedule. Raises ``InputError`` where it is illegal."""
        broken = violations(problem, self._schedule)
        if broken:
            raise InputError(f"time {self._schedule}", "; ".join(broken), {"n": problem.n, "k": problem.k}, "leave this schedule out")
        return self._schedule


def free_problem(case: Case, facts: DeviceFacts, *, swiglu: bool) -> IndexedProblem:
    """The problem of ``case`` while the block size of its routing may still be chosen."""
    layer = case.layer
    return FAMILY.problem(facts, layer.experts, layer.n, layer.k, case.rows / layer.experts, interleaved=swiglu, swiglu=swiglu)


def chosen(case: Case, facts: DeviceFacts, *, swiglu: bool, family: IndexedFamily = FAMILY) -> tuple[IndexedProblem, Schedule]:
    """The problem that a call on ``case`` poses, its routing built for it, and the schedule it gets."""
    free = free_problem(case, facts, swiglu=swiglu)
    problem = replace(free, block_m=family.schedule(free).bm)
    return problem, family.schedule(problem)


def public(case: Case, weight: PackedW4A16, inputs: Inputs, facts: DeviceFacts, *, swiglu: bool) -> Bound:
    """``api.indexed`` with ``out=``: what a user calls, checks included."""
    problem, schedule = chosen(case, facts, swiglu=swiglu)
    routing = api.align_blocks(inputs.topk_ids, problem.block_m, case.layer.experts)
    out = inputs.empty_output(weight.n // 2 if swiglu else weight.n)
    return Bound(lambda: api.indexed(inputs.x, weight, routing, swiglu=swiglu, out=out), out, routing, schedule)


def scheduled(case: Case, weight: PackedW4A16, inputs: Inputs, facts: DeviceFacts, schedule: Schedule, *, swiglu: bool) -> Bound:
    """The same call with a schedule of the caller's choice. Raises ``InputError`` where it is illegal for the case."""
    family = Fixed(schedule)
    problem, _ = chosen(case, facts, swiglu=swiglu, family=family)
    routing = api.align_blocks(inputs.topk_ids, problem.block_m, case.layer.experts)
    out = inputs.empty_output(weight.n // 2 if swiglu else weight.n)
    wishes = dict(swiglu=swiglu, topk_weights=None, expected_rows=None, checked=False, out=out)
    return Bound(lambda: family.run(inputs.x, weight, routing, **wishes), out, routing, schedule)
