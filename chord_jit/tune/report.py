"""What a run found, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from chord_jit.tune.contest import Contest
from chord_jit.tune.held import Held
from chord_jit.tune.write import Tables, changes

_SHOWN = 10


def as_json(header: Mapping, contests: Sequence[Contest], held: Mapping[str, Held], rounds: int, before: Tables, after: Tables) -> dict:
    """Everything: each contest with the last stage that each schedule reached, and the changes of the tables."""
    found = []
    for contest in contests:
        known = held[contest.name]
        schedules: dict[str, dict] = {}
        for stage in sorted(known.timed):
            for schedule, line in known.timed[stage].items():
                schedules[schedule] = {name: line[name] for name in ("us", "p10", "p90", "stage", "samples", "error")}
        found.append(
            {
                "case": contest.case.name, "swiglu": contest.swiglu, "rows": contest.rows, "bytes": contest.case.bytes,
                "flops": contest.case.flops, "held": str(contest.held or ""), "finished": bool(known.finals(contest, rounds)),
                "schedules": schedules, "refused": known.refused, "readers": known.readers,
            }
        )  # fmt: skip
    changed = [{"change": sign, "kernel": kernel, **row} for sign, kernel, row in changes(before, after)]
    return {"header": dict(header), "rounds": rounds, "contests": found, "changes": changed}


def lines(contest: Contest, held: Held, rounds: int) -> Iterator[str]:
    """One contest: the fastest of the last stage first, with the reader's share where it was timed, then what was refused."""
    finals = held.finals(contest, rounds)
    form = " swiglu" if contest.swiglu else ""
    timed = len({schedule for stage in held.timed.values() for schedule in stage})
    yield f"{contest.case.name}{form}: {contest.rows} rows, {contest.case.bytes / 1e6:.0f} MB, {timed} schedules timed"
    reader = min(held.readers.values(), default=None)
    for form, us in sorted(held.readers.items(), key=lambda item: item[1]):
        yield f"  {us:9.1f} us  {contest.case.bytes / us / 1e3:6.0f} GB/s  reader {form}"
    for schedule, line in list(finals.items())[:_SHOWN]:
        us = line["us"]
        share = f"{100 * reader / us:5.1f} % of the reader  " if reader else ""
        mark = "  (in the table)" if schedule == contest.held else ""
        yield f"  {us:9.1f} us  {contest.case.flops / us / 1e6:6.1f} TFLOP/s  {share}{line['error']:.2e}  {schedule}{mark}"
    if not finals:
        yield f"  not measured{': processes died in it' if held.deaths else ''}"
    reasons: dict[str, list[str]] = {}
    for schedule, why in held.refused.items():
        reasons.setdefault(why, []).append(schedule)
    for why, schedules in reasons.items():
        yield f"  refused  {schedules[0]}{f' and {len(schedules) - 1} more' if len(schedules) > 1 else ''}: {why}"


def changed(before: Tables, after: Tables) -> Iterator[str]:
    """The changes of the tables, row by row."""
    for sign, kernel, row in changes(before, after):
        yield f"{sign} {kernel} {json.dumps(row)}"
