"""Successive halving: few samples of every schedule, more of the better ones, many of the best few. Nothing is random."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from chord_jit.schedules.schedule import Schedule

#: Schedules that the second and the last stage take, at least.
_PLACES = (12, 5)
_QUARTER = 4
#: The stage whose times decide.
LAST = len(_PLACES)


def rounds_of(rounds: int) -> tuple[int, int, int]:
    """Samples of a schedule in each stage, ``rounds`` being those of the last."""
    return min(rounds, max(5, rounds // 12)), min(rounds, max(10, rounds // 4)), rounds


def survivors(times: Mapping[Schedule, float], stage: int, always: Collection[Schedule] = ()) -> list[Schedule]:
    """The schedules of the stage after ``stage``, fastest first: the best quarter, but no fewer than 12, then the best 5.

    ``always``: schedules that stay whatever their time, since the decision asks for it.
    """
    ordered = sorted(times, key=lambda schedule: (times[schedule], schedule))
    places = max(_PLACES[stage], -(-len(ordered) // _QUARTER) if stage == 0 else 0)
    return [schedule for place, schedule in enumerate(ordered) if place < places or schedule in always]


def play(
    schedules: Sequence[Schedule],
    rounds: int,
    time: Callable[[int, list[Schedule], int], Mapping[Schedule, float] | None],
    always: Collection[Schedule] = (),
) -> bool:
    """Let ``schedules`` compete. ``time(stage, entrants, rounds)`` gives the time of each entrant that can be timed.

    A stage that would drop nobody is left out. False where ``time`` gave ``None``: the stage is not measured yet.
    """
    entrants = list(schedules)
    for stage, samples in enumerate(rounds_of(rounds)):
        if stage < LAST and len(entrants) <= _PLACES[stage]:
            continue
        times = time(stage, entrants, samples)
        if times is None:
            return False
        if stage < LAST:
            entrants = survivors(times, stage, always)
    return True
