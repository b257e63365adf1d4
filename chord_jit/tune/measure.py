"""The part of a run that needs the GPU: check every schedule, then time the right ones in turns, stage by stage."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from chord_jit.bench import check, ours, targets, workload
from chord_jit.bench.reader import FORMS, Reader
from chord_jit.bench.sides import Inputs
from chord_jit.bench.timing import interleave
from chord_jit.bench.workload import Weights
from chord_jit.device import DeviceFacts
from chord_jit.errors import ChordError
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.contest import Contest
from chord_jit.tune.halving import LAST, play
from chord_jit.tune.held import Held, by_contest, in_turn
from chord_jit.tune.journal import Journal

#: Load before the samples that decide, so that they are taken at the clock of a busy GPU.
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class Bench:
    """What every contest of a run shares. ``flush`` evicts L2; ``readers``: time the read-only kernels too."""

    facts: DeviceFacts
    generator: torch.Generator
    flush: Callable[[], None]
    rounds: int
    readers: bool = False


def measure(bench: Bench, contests: Sequence[Contest], journal: Journal, on_step: Callable[[int, int, object], None]) -> None:
    """Measure what ``journal`` does not hold yet, and write it there. ``on_step(done, total, contest)`` follows each contest."""
    held = by_contest(journal.lines)
    left = sum(not finished for *_, finished in in_turn(contests, held, bench.rounds))
    done, weights = 0, None
    for contest, always, finished in in_turn(contests, held, bench.rounds):
        if finished:
            continue
        if weights is None or weights.layer != contest.case.layer:
            weights = None  # the old layer's memory is free before the new one's is asked for
            torch.cuda.empty_cache()
            weights = workload.weights(contest.case.layer, bench.generator)
        _Match(bench, contest, weights, held[contest.name], journal).play(always)
        done += 1
        on_step(done, max(done, left), contest)


class _Match:
    """One contest at the GPU."""

    def __init__(self, bench: Bench, contest: Contest, weights: Weights, held: Held, journal: Journal):
        self._bench, self._contest, self._held, self._journal = bench, contest, held, journal
        self._weight: PackedW4A16 = weights.fused if contest.swiglu else weights.plain
        self._inputs = _sharing_one_output(workload.inputs(contest.case, bench.generator))
        self._wanted = check.exact(self._weight, self._inputs, swiglu=contest.swiglu)
        self._calls: dict[Schedule, Callable[[], object]] = {}
        self._errors: dict[Schedule, float] = {}

    def play(self, always: Collection[Schedule]) -> None:
        """Measure whatever is not known yet. ``always``: schedules that no stage drops."""
        play(self._contest.schedules, self._bench.rounds, self._time, always)

    def _time(self, stage: int, entrants: list[Schedule], rounds: int) -> dict[Schedule, float]:
        known = self._held.times(stage, entrants, rounds)
        if known is not None:
            return known
        for schedule in entrants:
            if schedule not in self._calls and str(schedule) not in self._held.refused:
                self._check(schedule)
        calls = {str(schedule): self._calls[schedule] for schedule in entrants if schedule in self._calls}
        readers = self._readers() if stage == LAST and self._bench.readers else {}
        if not calls:
            return {}
        self._write({"at": "turns", "stage": stage})
        times = interleave({**calls, **readers}, self._bench.flush, rounds, _SETTLE_SECONDS if stage == LAST else 0.0)
        facts = {"at": "timed", "stage": stage, "samples": rounds, "turn": len(self._journal.lines)}
        timed = [(schedule, times[str(schedule)]) for schedule in entrants if schedule in self._calls]
        self._write(
            *(
                {**facts, "schedule": str(schedule), "us": us.median, "p10": us.p10, "p90": us.p90, "error": self._errors[schedule]}
                for schedule, us in timed
            ),
            *({"at": "reader", "form": form, "us": times[form].median} for form in readers),
        )
        return {schedule: us.median for schedule, us in timed}

    def _check(self, schedule: Schedule) -> None:
        """Compare one call with FP64. Whatever goes wrong is written down, and costs nobody else anything."""
        self._write({"at": "started", "schedule": str(schedule)})
        why = ""
        try:
            bound = ours.scheduled(self._contest.case, self._weight, self._inputs, self._bench.facts, schedule, swiglu=self._contest.swiglu)
            bound.call()
            error = check.relative_l2(bound.out, self._wanted)
            if error > targets.WRONG_ABOVE:
                why = f"wrong result: relative error {error:.1e}"
        except ChordError as refused:
            why = refused.rule
        except RuntimeError as failed:
            self._refuse(schedule, f"{type(failed).__name__}: {str(failed).splitlines()[0]}")
            # After a fault on the device every later call of this process fails too: whoever started it must start another.
            self._wanted.norm().item()
            return
        if why:
            self._refuse(schedule, why)
        else:
            self._calls[schedule], self._errors[schedule] = bound.call, error
            self._write({"at": "checked", "schedule": str(schedule)})

    def _refuse(self, schedule: Schedule, why: str) -> None:
        self._write({"at": "refused", "schedule": str(schedule), "why": why})

    def _write(self, *lines: dict) -> None:
        whole = [{"contest": self._contest.name, **line} for line in lines]
        self._journal.append(*whole)
        for line in whole:
            self._held.add(line)

    def _readers(self) -> dict[str, Reader]:
        return {form.name: Reader.of_weight(form, self._weight, self._inputs.active) for form in FORMS}


def _sharing_one_output(inputs: Inputs) -> Inputs:
    """The same inputs, whose calls all write the same memory: a hundred outputs of a prefill would not fit a GPU.

    Sound because a call's result is looked at before the next call is bound, which fills the output with NaN again.
    """
    shared, made = copy.copy(inputs), {}

    def empty_output(features: int) -> torch.Tensor:
        if features not in made:
            made[features] = inputs.empty_output(features)
        return made[features].fill_(float("nan"))

    object.__setattr__(shared, "empty_output", empty_output)
    return shared
