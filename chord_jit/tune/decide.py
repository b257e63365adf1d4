"""From times to winners: what the table holds stays unless it is beaten, and few kernels are better than many."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.contest import Contest
from chord_jit.tune.held import Held

#: Schedules this close to the best are as good as it: medians of one run repeat no better.
NOISE = 0.01


@dataclass(frozen=True)
class Point:
    """What was measured of a problem at one count of local rows.

    ``scores``: time over the best one's, by schedule, over all contests of this count (exact and padded, equal and ragged
    rows share a table row). ``us``: in the first of them. ``held``: what the tables name now.
    """

    key: tuple
    rows: int
    scores: Mapping[Schedule, float]
    us: Mapping[Schedule, float]
    held: Schedule | None

    @property
    def good(self) -> set[Schedule]:
        """What may be chosen: all within the noise of the best, and nothing else where the held one is among them."""
        best = min(self.scores.values())
        found = {schedule for schedule, score in self.scores.items() if score <= best * (1 + NOISE)}
        return {self.held} if self.held in found else found


def points(contests: Sequence[Contest], held: Mapping[str, Held], rounds: int) -> list[Point]:
    """One point for each key and count, sorted. Contests without a last stage count for nothing."""
    done = [contest for contest in contests if held[contest.name].finals(contest, rounds)]
    found = []
    for (key, rows), group in groupby(sorted(done, key=_place), key=_place):
        point = _point(key, rows, list(group), held, rounds)
        if point.scores:
            found.append(point)
    return found


def _place(contest: Contest) -> tuple[tuple, int]:
    return contest.key, contest.rows


def _point(key: tuple, rows: int, group: list[Contest], held: Mapping[str, Held], rounds: int) -> Point:
    relative = [held[contest.name].relative(contest, rounds) for contest in group]
    us: dict[Schedule, float] = {}
    for contest in reversed(group):
        us |= {schedule: line["us"] for schedule, line in held[contest.name].finals(contest, rounds).items()}
    scores = {
        schedule: sum(one[schedule] for one in relative) / len(relative) for schedule in us if all(schedule in one for one in relative)
    }
    return Point(key, rows, scores, us, group[0].held)


def choose(found: Sequence[Point], used: Collection[Schedule]) -> list[Schedule]:
    """The winner of each point of one key, in the order of rows.

    Neighbouring counts take one schedule as long as one is good for all of them; among those that are, one in ``used``
    (kernels that the weight needs anyway) comes first, then the one that is fastest over all of them.
    """
    taken, chosen = set(used), []
    for group, common in _runs(found):
        winner = min(common, key=lambda schedule: (schedule not in taken, sum(point.scores[schedule] for point in group), schedule))
        chosen += [winner] * len(group)
        taken.add(winner)
    return chosen


def _runs(found: Sequence[Point]) -> Iterator[tuple[list[Point], set[Schedule]]]:
    """Neighbouring points, as many as have a schedule that is good for all of them, and those that are."""
    group: list[Point] = []
    common: set[Schedule] = set()
    for point in found:
        if common & point.good:
            group.append(point)
            common &= point.good
            continue
        if group:
            yield group, common
        group, common = [point], point.good
    if group:
        yield group, common
