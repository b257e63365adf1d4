"""Every kernel that a deployment of a model can ask for, chosen once and then known, and their warm-up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chord_jit.device import DeviceFacts
from chord_jit.errors import InputTypeError
from chord_jit.families import base
from chord_jit.families.base import Family
from chord_jit.formats.model_config import read_model_shape, require_int4_group32
from chord_jit.jit import engine, manifest, slots
from chord_jit.jit.key import key_of
from chord_jit.jit.manifest import Wanted
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.store import user_store
from chord_jit.jit.warmup import WarmupReport, warm_up
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule

#: What serves one problem: kernel, family, problem, schedule.
Choice = tuple[KernelSpec, Family, object, Schedule]

#: Most kernels that one deployment on one target should need: what a cold start costs is bounded by it.
MOST_KERNELS = 40


@dataclass(frozen=True)
class Plan:
    """``kernels``: distinct ones, in the order of problems. ``known``: they came from a manifest. ``choices``: of every problem, if not."""

    kernels: tuple[Wanted, ...]
    known: bool
    choices: tuple[Choice, ...] = ()

    def warm_up(self, *, jobs: int | None = None, progress: Callable[[int, int, KernelSpec], None] | None = None) -> WarmupReport:
        """Build every kernel; load none."""
        digests = {one.spec: one.digest for one in self.kernels}
        return warm_up(digests, jobs=jobs, progress=progress, digests=digests)

    def load(self, index: int, *, without: Collection[KernelSpec] = ()) -> None:
        """Load every kernel on CUDA device ``index``, the current one, so that no later call loads: not even one under capture.

        With kernels from a manifest a call still chooses its schedule and binds its launch: host time, once for each problem.
        """
        if not self.known:
            prepare(self.choices, index, without)
            return
        slots.prepare(index)
        for one in self.kernels:
            if one.spec not in without:
                engine.load(one.spec, index, dict(one.spec.config)["kSharedBytes"])


def prepare(choices: Iterable[Choice], index: int, without: Collection[KernelSpec]) -> None:
    """Load every kernel but ``without`` on CUDA device ``index``, bound to what its problem needs."""
    for spec, owner, problem, schedule in choices:
        if spec not in without:
            owner.prepare(problem, schedule, index)


def deployment_of(config: str | Path | Mapping, tp: int = 1, ep: int = 1) -> Deployment:
    """One rank's share of the model of ``config`` (a model folder, a config.json, or its content). Raises ``InputError``."""
    require_int4_group32(config)
    shape = read_model_shape(config)
    return Deployment(shape.hidden, shape.moe_intermediate, shape.experts, shape.top_k, tp=tp, ep=ep)


def plan(model: Deployment, targets: Sequence[DeviceFacts]) -> Plan:
    """The kernels of ``model`` on GPUs of these facts: from the manifest of an earlier plan, else chosen now and written down."""
    # The manifest's name covers the code of this package only, so a family from outside is always asked.
    own = all(module.startswith("chord_jit.") for module in base.FAMILIES.values())
    store = user_store()
    name = manifest.name_of({"model": asdict(model), "targets": [asdict(facts) for facts in targets]}) if own else None
    kernels = manifest.read(store, name) if name else None
    if kernels is not None:
        return Plan(kernels, True)
    found: dict[KernelSpec, Wanted] = {}
    choices = tuple(chosen(problem for facts in targets for problem in base.deployment_problems(model, facts)))
    for spec, _, _, schedule in choices:
        before = found.get(spec) or Wanted(spec, key_of(spec).digest, str(schedule), 0)
        found[spec] = replace(before, problems=before.problems + 1)
    kernels = tuple(found.values())
    if name:
        manifest.write(store, name, kernels)
    return Plan(kernels, False, choices)


def chosen(problems: Iterable[object]) -> Iterator[Choice]:
    """What serves each problem. Raises ``InputTypeError`` for what is no problem."""
    for problem in problems:
        name = getattr(problem, "family", None)
        if name not in base.FAMILIES:
            raise InputTypeError(
                "warm up", "each problem must be one of a family", {"type": type(problem).__name__, "families": ", ".join(base.FAMILIES)},
                "make problems with FAMILY.problem(...) or FAMILY.deployment(...) of a module of chord_jit.families",
            )
        owner = base.family(name)
        schedule = owner.schedule(problem)
        yield owner.spec(problem, schedule), owner, problem, schedule
