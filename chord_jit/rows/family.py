"""The row kernels as a family, so that whatever compiles, warms up and loads finds them too. Each has one form and no schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from chord_jit.device import DeviceFacts
from chord_jit.jit.spec import KernelSpec
from chord_jit.rows import kernels
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule


@dataclass(frozen=True)
class RowsProblem:
    """One of the kernels, by its stem, on a GPU of these facts."""

    facts: DeviceFacts
    stem: str

    family: ClassVar[str] = "rows"


class RowsFamily:
    """See ``families.base.Family``."""

    name = "rows"

    def schedule(self, problem: RowsProblem) -> Schedule:
        """The kernel's one form: nothing in it is chosen."""
        return Schedule(problem.stem, 1, 1, 1, 1)

    def candidates(self, problem: RowsProblem) -> Iterable[Schedule]:
        """The one form."""
        return (self.schedule(problem),)

    def spec(self, problem: RowsProblem, schedule: Schedule) -> KernelSpec:
        """The kernel, which every layer shares."""
        return kernels.ALL[problem.stem][0].spec(problem.facts.arch)

    def prepare(self, problem: RowsProblem, schedule: Schedule, index: int) -> None:
        """Load the kernel on device ``index`` and bind each of its grids."""
        for kernel in kernels.ALL[problem.stem]:
            kernels.launch(kernel, index)

    def deployment(self, model: Deployment, facts: DeviceFacts) -> Iterable[RowsProblem]:
        """All of them, whatever the model."""
        return [RowsProblem(facts, stem) for stem in kernels.ALL]


FAMILY = RowsFamily()
