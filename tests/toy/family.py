"""A family that the package does not know: vector add. It shows that adding one changes nothing in the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chord_jit import device
from chord_jit.device import DeviceFacts
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules.schedule import Schedule

ASSETS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class ToyProblem:
    arch: str
    scale: int

    @property
    def facts(self) -> DeviceFacts:
        return device.target(self.arch)


class ToyFamily:
    name = "toy"

    def schedule(self, problem: ToyProblem) -> Schedule:
        return Schedule("toy_add", 1, 256, 1, 1)

    def candidates(self, problem: ToyProblem) -> Iterator[Schedule]:
        return (Schedule("toy_add", 1, threads, 1, 1) for threads in (128, 256, 512))

    def spec(self, problem: ToyProblem, schedule: Schedule) -> KernelSpec:
        return KernelSpec(schedule.kernel, (("kThreads", schedule.bn), ("kScale", problem.scale)), problem.arch)

    def deployment(self, model: object, facts) -> Iterator[ToyProblem]:
        return (ToyProblem(facts.arch, scale) for scale in (1, 2, 3))


FAMILY = ToyFamily()


def spec(scale: int = 2, *, threads: int = 256, arch: str = "sm_90a") -> KernelSpec:
    """A kernel of the family."""
    return FAMILY.spec(ToyProblem(arch, scale), Schedule("toy_add", 1, threads, 1, 1))
