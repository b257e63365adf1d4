"""What the lines of a journal say, by contest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.contest import Contest
from chord_jit.tune.halving import LAST, play

#: A contest in which so many processes died is left alone.
_MOST_DEATHS = 2


@dataclass
class Held:
    """``refused``: why, by schedule. ``timed``: the lines of each stage by schedule, stages by number and samples.

    ``readers``: us by form. Times are comparable only where they took turns, so a stage that is measured again replaces
    what was known of it. ``started``: the schedule whose first launch has had no outcome yet. ``turns``: whether
    schedules were taking turns at last. ``deaths``: processes that ended so.
    """

    refused: dict[str, str] = field(default_factory=dict)
    timed: dict[tuple[int, int], dict[str, dict]] = field(default_factory=dict)
    readers: dict[str, float] = field(default_factory=dict)
    started: str | None = None
    turns: bool = False
    deaths: int = 0

    def add(self, line: Mapping) -> None:
        """Take in one line."""
        self.started = line["schedule"] if line["at"] == "started" else None
        self.turns = line["at"] == "turns"
        self.deaths += line["at"] == "died"
        if line["at"] == "refused":
            self.refused[line["schedule"]] = line["why"]
        elif line["at"] == "timed":
            stage = self.timed.setdefault((line["stage"], line["samples"]), {})
            if any(other["turn"] != line["turn"] for other in stage.values()):
                stage.clear()
            stage[line["schedule"]] = dict(line)
        elif line["at"] == "reader":
            self.readers[line["form"]] = line["us"]

    def times(self, stage: int, entrants: Iterable[Schedule], samples: int) -> dict[Schedule, float] | None:
        """The stage's medians, or ``None`` where an entrant that was not refused has none."""
        lines = self.timed.get((stage, samples), {})
        running = [schedule for schedule in entrants if str(schedule) not in self.refused]
        if not all(str(schedule) in lines for schedule in running):
            return None
        return {schedule: lines[str(schedule)]["us"] for schedule in running}

    def finals(self, contest: Contest, rounds: int) -> dict[Schedule, dict]:
        """The lines of the last stage, fastest first."""
        lines = self.timed.get((LAST, rounds), {})
        found = [(schedule, lines[str(schedule)]) for schedule in contest.schedules if str(schedule) in lines]
        return dict(sorted(found, key=lambda item: (item[1]["us"], item[0])))

    def relative(self, contest: Contest, rounds: int) -> dict[Schedule, float]:
        """Every timed schedule's time over the best one's, in the last stage that it reached."""
        found: dict[str, float] = {}
        for stage in sorted(self.timed):
            best = min(line["us"] for line in self.timed[stage].values())
            found |= {schedule: line["us"] / best for schedule, line in self.timed[stage].items()}
        return {schedule: found[str(schedule)] for schedule in contest.schedules if str(schedule) in found}


def by_contest(lines: Iterable[Mapping]) -> dict[str, Held]:
    """Everything that is known of each contest, by its name."""
    found: dict[str, Held] = defaultdict(Held)
    for line in lines:
        found[line["contest"]].add(line)
    return found


def in_turn(contests: Sequence[Contest], held: Mapping[str, Held], rounds: int) -> Iterator[tuple[Contest, tuple[Schedule, ...], bool]]:
    """Each contest, the schedules that it may not drop, and whether nothing of it is left to be measured.

    A contest may not drop what a table holds for it, nor the winners of its layer and form that were found before it: a
    decision that wants few kernels asks for their times. What the caller adds to ``held`` meanwhile counts.
    """
    winners: dict[tuple, list[Schedule]] = defaultdict(list)
    for contest in contests:
        group = winners[contest.case.layer, contest.swiglu]
        known = held[contest.name]
        always = tuple(dict.fromkeys([*filter(None, [contest.held]), *group]))
        yield contest, always, known.deaths >= _MOST_DEATHS or play(contest.schedules, rounds, known.times, always)
        group += list(known.finals(contest, rounds))[:1]
