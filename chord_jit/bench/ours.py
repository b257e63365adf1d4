"""Our side of a case: the public call, or one named schedule for a tuner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from chord_jit.bench import sides
from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.sides import Inputs
from chord_jit.device import DeviceFacts
from chord_jit.families.base import Family
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.schedules.schedule import Schedule

_OVERRIDABLE = tuple(field.name for field in fields(Schedule) if field.name != "kernel")


@dataclass(frozen=True, eq=False)
class Bound:
    """One call with everything it needs; calling it enqueues. ``out`` is NaN where nothing was written yet."""

    call: Callable[[], object]
    out: torch.Tensor
    schedule: Schedule


def overrides(schedule: Schedule) -> dict[str, str]:
    """``CHORD_W4A16_*`` variables that force ``schedule``, for ``knobs.scope``."""
    return {f"CHORD_W4A16_{name.upper()}": str(getattr(schedule, name)) for name in _OVERRIDABLE}


def free_problem(case: AnyCase, facts: DeviceFacts, *, swiglu: bool) -> object:
    """The problem of ``case`` while what its inputs are built with may still follow the schedule."""
    return sides.of(case).free_problem(case, facts, swiglu=swiglu)


def chosen(case: AnyCase, facts: DeviceFacts, *, swiglu: bool, schedule: Schedule | None = None) -> tuple[object, Schedule]:
    """The problem that a call on ``case`` poses, its inputs built for it, and the schedule it gets.

    ``schedule``: one of the caller's choice instead; ``InputError`` where it is illegal for the case.
    """
    return sides.of(case).chosen(case, facts, swiglu=swiglu, family=_family(case, schedule))


def public(case: AnyCase, weight: PackedW4A16, inputs: Inputs, facts: DeviceFacts, *, swiglu: bool) -> Bound:
    """The public call with ``out=``: what a user calls, checks included."""
    problem, schedule = chosen(case, facts, swiglu=swiglu)
    out = _output(weight, inputs, swiglu)
    return Bound(sides.of(case).public_call(problem, weight, inputs, out), out, schedule)


def scheduled(case: AnyCase, weight: PackedW4A16, inputs: Inputs, facts: DeviceFacts, schedule: Schedule, *, swiglu: bool) -> Bound:
    """The same call with a schedule of the caller's choice. Raises ``InputError`` where it is illegal for the case."""
    side, family = sides.of(case), _family(case, schedule)
    problem, _ = side.chosen(case, facts, swiglu=swiglu, family=family)
    out = _output(weight, inputs, swiglu)
    return Bound(side.family_call(family, problem, weight, inputs, out), out, schedule)


def _family(case: AnyCase, schedule: Schedule | None) -> Family:
    side = sides.of(case)
    return side.family if schedule is None else side.fixed(schedule)


def _output(weight: PackedW4A16, inputs: Inputs, swiglu: bool) -> torch.Tensor:
    return inputs.empty_output(weight.n // 2 if swiglu else weight.n)
