"""The family protocol and the explicit list of families. Nothing else asks which family it is."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol

from chord_jit.device import DeviceFacts
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule


class Family(Protocol):
    """What the machine needs of a family of kernels.

    A ``problem`` is the family's own frozen dataclass: what is asked, from shapes, dtypes and device facts alone. It names its
    ``family``, and as ``facts`` the GPU that it is for.
    """

    name: str

    def schedule(self, problem: object) -> Schedule:
        """The schedule of ``problem``: override, then table, then cost model; always legal."""

    def candidates(self, problem: object) -> Iterable[Schedule]:
        """Every legal schedule worth timing for ``problem``."""

    def spec(self, problem: object, schedule: Schedule) -> KernelSpec:
        """The kernel of ``schedule``: its template stem, named fields and target."""

    def prepare(self, problem: object, schedule: Schedule, index: int) -> object:
        """Load the kernel of ``schedule`` on CUDA device ``index``, with all that a launch under capture needs."""

    def deployment(self, model: Deployment, facts: DeviceFacts) -> Iterable[object]:
        """Every problem that one deployment of ``model`` can ask for: what warm-up compiles."""


#: One line per family: name to module; the module's ``FAMILY`` implements ``Family``.
FAMILIES = {"indexed": "chord_jit.families.indexed", "grouped": "chord_jit.families.grouped", "rows": "chord_jit.rows.family"}


def family(name: str) -> Family:
    """The family of that name. Raises ``KeyError`` for an unknown one."""
    return import_module(FAMILIES[name]).FAMILY


def deployment_problems(model: Deployment, facts: DeviceFacts) -> list[object]:
    """Every problem of every family that one deployment can ask for on a GPU of these facts."""
    return [problem for name in FAMILIES for problem in family(name).deployment(model, facts)]
