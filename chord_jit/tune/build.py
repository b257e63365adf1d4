"""Compiles what competes, many kernels at a time, on a machine with or without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from chord_jit.errors import ChordError
from chord_jit.jit import engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import WarmupReport, warm_up
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.contest import Contest
from chord_jit.tune.held import Held


def compile_all(contests: Iterable[Contest], jobs: int | None, progress: Callable[[int, int, KernelSpec], None]) -> WarmupReport:
    """Build every kernel of ``contests`` that the cache lacks."""
    return warm_up([spec for contest in contests for _, spec in contest.specs()], jobs=jobs, progress=progress)


def hopeless(contests: Sequence[Contest], held: Mapping[str, Held]) -> Iterator[dict]:
    """A journal line for every schedule that cannot compete: illegal, not to be compiled, with local memory or a warning.

    Asks the cache, so everything that compiles must have been compiled.
    """
    known: dict[KernelSpec, str] = {}
    for contest in contests:
        for schedule, why in _refusals(contest, known):
            if str(schedule) not in held[contest.name].refused:
                yield {"contest": contest.name, "at": "refused", "schedule": str(schedule), "why": why}


def _refusals(contest: Contest, known: dict[KernelSpec, str]) -> Iterator[tuple[Schedule, str]]:
    for schedule in contest.schedules:
        if broken := contest.illegal(schedule):
            yield schedule, broken
    for schedule, spec in contest.specs():
        if spec not in known:
            known[spec] = _why_not(spec)
        if known[spec]:
            yield schedule, known[spec]


def _why_not(spec: KernelSpec) -> str:
    try:
        facts = engine.build(spec).facts
    except ChordError as refused:
        return f"does not compile: {refused.rule}"
    if facts.get("spill_bytes"):
        return f"the compiler gave it {facts['spill_bytes']} bytes of local memory"
    return f"the compiler warns: {facts['warnings'][0]}" if facts.get("warnings") else ""
