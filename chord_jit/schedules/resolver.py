"""Override, then table, then cost model, all through legality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from chord_jit import knobs
from chord_jit.errors import ChordInternalError, OverrideError
from chord_jit.schedules.schedule import Schedule

_OVERRIDES = {
    "bm": "CHORD_W4A16_BM", "bn": "CHORD_W4A16_BN", "bk": "CHORD_W4A16_BK", "cm": "CHORD_W4A16_CM", "cn": "CHORD_W4A16_CN",
    "stages": "CHORD_W4A16_STAGES", "split": "CHORD_W4A16_SPLIT", "ctas": "CHORD_W4A16_CTAS",
}  # fmt: skip

#: Costs this close are one to the model.
_TIE = 1.03


def as_cheap(problem: object, schedules: Sequence[Schedule], cost: Callable[[object, Schedule], float]) -> list[Schedule]:
    """Those of ``schedules`` that the model holds for as cheap as the cheapest, in their order."""
    costs = [cost(problem, schedule) for schedule in schedules]
    limit = min(costs) * _TIE
    return [schedule for schedule, value in zip(schedules, costs, strict=True) if value <= limit]


def shared(sizes: Iterable[object], good: Callable[[object], Sequence[Schedule]]) -> dict[object, Schedule]:
    """The schedule of each of ``sizes``, one request at ascending rows: neighbours share one as long as one is ``good`` for all."""
    runs: list[tuple[list[object], list[Schedule]]] = []
    for one in sizes:
        fits = list(good(one))
        common = [schedule for schedule in runs[-1][1] if schedule in fits] if runs else []
        if common:
            runs[-1] = ([*runs[-1][0], one], common)
        else:
            runs.append(([one], fits))
    return {one: common[0] for run, common in runs for one in run}


def resolve(
    problem: object,
    *,
    table: Callable[[object], Schedule | None],
    candidates: Callable[[object], Iterable[Schedule]],
    violations: Callable[[object, Schedule], list[str]],
    cost: Callable[[object, Schedule], float],
    model: Callable[[object], Schedule | None] = lambda problem: None,
    bases: Callable[[object], Iterable[Schedule]] | None = None,
) -> Schedule:
    """The schedule of ``problem``. Raises ``OverrideError`` when ``CHORD_W4A16_*`` asks for what no rule allows.

    Among candidates that the cost model holds for equally good the first is taken, or the one that ``model`` names (what
    neighbouring sizes share), so that a deployment needs few cubins.
    Fields that no variable names are free: among the legal candidates that agree with the override the cheapest is taken;
    where none agrees, the variables are laid over the schedule that would have been chosen, or else over the cheapest of ``bases``,
    the candidates unless given, that they leave legal.
    """
    wanted = {field: value for field, name in _OVERRIDES.items() if (value := knobs.read(name)) is not None}
    found = table(problem)
    if found is not None and violations(problem, found):
        found = None
    if found is not None and all(getattr(found, field) == value for field, value in wanted.items()):
        return found
    legal = list(candidates(problem))
    if not legal:
        raise ChordInternalError("choose a schedule", "every valid problem must have a legal schedule", {"problem": problem}, "report it")
    if not wanted and (named := model(problem)):
        return named
    agreeing = [s for s in legal if all(getattr(s, field) == value for field, value in wanted.items())]
    if agreeing:
        return as_cheap(problem, agreeing, cost)[0]
    refused: dict[str, list[str]] = {}
    others = legal if bases is None else bases(problem)
    could_serve = {one.kernel for one in legal}
    for base in filter(None, (found, as_cheap(problem, legal, cost)[0], *sorted(others, key=lambda one: cost(problem, one)))):
        forced = replace(base, **wanted)
        broken = violations(problem, forced)
        if not broken:
            return forced
        if base.kernel in could_serve:
            refused.setdefault(base.kernel, broken)
    raise OverrideError(
        f"override the schedule of {problem}", _told(refused),
        {_OVERRIDES[field]: value for field, value in wanted.items()}, "change or unset these variables",
    )


def _told(refused: dict[str, list[str]]) -> str:
    """The rules that an override breaks, by kernel where several could have served."""
    if len(refused) == 1:
        return "; ".join(*refused.values())
    return "; ".join(f"{kernel}: {', '.join(broken)}" for kernel, broken in refused.items())
