"""One case in one form, and the schedules that compete in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from chord_jit.bench import ours
from chord_jit.bench.cases import AnyCase
from chord_jit.device import DeviceFacts
from chord_jit.families.base import family
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import cost, table
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule


@dataclass(frozen=True)
class Contest:
    """``problem``: what a call on ``case`` asks for, open to every schedule. ``held``: the schedule that a table names for it."""

    case: AnyCase
    swiglu: bool
    problem: object
    schedules: tuple[Schedule, ...] = ()

    @property
    def name(self) -> str:
        """Tells contests apart, in a journal too: the case, the form, and the shape of the weight."""
        asked = self.problem
        return f"{self.case.name}{' swiglu' if self.swiglu else ''} {asked.experts}x{asked.n}x{asked.k}"

    @property
    def key(self) -> tuple:
        """The values of ``table.KEY``."""
        asked = self.problem
        layout = table.layout_of(self.case.layout)
        return (asked.facts.arch, asked.facts.sms, layout, asked.n, asked.k, asked.experts, self.swiglu)

    @property
    def rows(self) -> int:
        """Local routed rows, as tables count them: the case's own, not the size that stands for them in the problem."""
        return self.case.rows

    @cached_property
    def held(self) -> Schedule | None:
        named = dict(zip(table.KEY, self.key, strict=True))
        found = (table.find(kernel, **named, rows=self.rows) for kernel in table.kernels())
        return next((schedule for schedule in found if schedule is not None), None)

    def illegal(self, schedule: Schedule) -> str:
        """Why ``schedule`` cannot compete; empty where it can."""
        return "; ".join(violations(self.problem, schedule))

    def specs(self) -> list[tuple[Schedule, KernelSpec]]:
        """The legal schedules and their kernels."""
        owner = family(self.problem.family)
        return [(schedule, owner.spec(self.problem, schedule)) for schedule in self.schedules if not self.illegal(schedule)]


def contests(
    cases: Iterable[AnyCase],
    facts: DeviceFacts,
    *,
    forms: Sequence[bool] = (False,),
    given: Sequence[Schedule] = (),
    candidates: bool = True,
    most: int | None = None,
) -> list[Contest]:
    """Every case in every form that its layer has, layer by layer and from few rows to many.

    ``forms``: plain (False) and with SwiGLU fused (True). Besides ``given`` schedules, ``candidates`` lets those of the
    family compete, the ``most`` that the cost model holds for fastest or all, and with them the one that a table holds.
    """
    found: dict[str, Contest] = {}
    for case in cases:
        for swiglu in forms:
            if swiglu and not case.layer.gated:
                continue
            free = Contest(case, swiglu, ours.free_problem(case, facts, swiglu=swiglu))
            everyone = list(given)
            if candidates:
                everyone += [*_promising(free.problem, most), *(one for one in [free.held] if one and not free.illegal(one))]
            found[free.name] = Contest(case, swiglu, free.problem, tuple(dict.fromkeys(everyone)))
    layers = list(dict.fromkeys(contest.case.layer for contest in found.values()))
    return sorted(found.values(), key=lambda contest: (layers.index(contest.case.layer), contest.swiglu, contest.key, contest.rows))


def _promising(problem: object, most: int | None) -> list[Schedule]:
    every = list(family(problem.family).candidates(problem))
    return every if most is None else sorted(every, key=lambda schedule: cost.estimate(problem, schedule))[:most]


def with_companions(cases: Iterable[AnyCase]) -> Iterator[AnyCase]:
    """Each case, and behind it those that take turns with it in ``chord bench``."""
    for case in cases:
        yield case
        for _, companion in case.companions:
            yield companion
