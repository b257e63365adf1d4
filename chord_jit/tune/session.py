"""A run from its journal's first line to the decision: what ``chord tune`` does between its arguments and its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chord_jit import device
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError
from chord_jit.tune import write
from chord_jit.tune.build import compile_all, hopeless
from chord_jit.tune.contest import Contest
from chord_jit.tune.decide import points
from chord_jit.tune.held import Held, by_contest, in_turn
from chord_jit.tune.journal import Journal, header, kernel_hashes
from chord_jit.tune.worker import driver

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class Outcome:
    """``measured``: contests that have their last stage. ``before``, ``after``: the tables without and with the winners."""

    held: Mapping[str, Held]
    measured: int
    before: write.Tables
    after: write.Tables


def facts_of(header: Mapping) -> DeviceFacts:
    """The GPU that a journal was measured on, as far as a machine without it must know."""
    return replace(device.target(header["arch"]), name=header["gpu"], sms=header["sms"])


def require_commit(given: str, earlier: Journal | None) -> None:
    """Refuse, before anything is measured, to write rows that cannot say which commit they come from."""
    commit = _commit(given, earlier.header if earlier else {})
    if not _COMMIT.fullmatch(commit):
        raise InputError(
            "write table rows",
            "a row must name the commit that it was measured at, 7 to 40 hexadecimal digits",
            {"commit": commit},
            "add --commit $(git rev-parse --short HEAD)",
        )


def begin(
    contests: Sequence[Contest], here: DeviceFacts | None, earlier: Journal | None, out: Path | None, command: str, commit: str
) -> Journal:
    """The journal that the run writes to: a new one, the ``earlier`` one, or a copy of that at ``out``."""
    kernels = kernel_hashes(one.kernel for contest in contests for one in contest.schedules if not contest.illegal(one))
    if earlier is None:
        return Journal.create(out, header(here, driver(), kernels, command, commit))
    earlier.require(here, kernels)
    return Journal.create(out, earlier.header, earlier.lines) if out else earlier


def left_of(contests: Sequence[Contest], journal: Journal, rounds: int) -> list[Contest]:
    """The contests of which something is left to be measured."""
    return [contest for contest, _, finished in in_turn(contests, by_contest(journal.lines), rounds) if not finished]


def prepare(contests: Sequence[Contest], journal: Journal, jobs: int | None, progress: Callable[[int, int, object], None]) -> None:
    """Compile what competes, and refuse in the journal what cannot."""
    compile_all(contests, jobs, progress)
    if lines := list(hopeless(contests, by_contest(journal.lines))):
        journal.append(*lines)


def decide(contests: Sequence[Contest], journal: Journal, rounds: int, commit: str) -> Outcome:
    """What the journal's times mean for the tables."""
    held = by_contest(journal.lines)
    found, before = points(contests, held, rounds), write.current()
    after = write.decided(before, found, commit=_commit(commit, journal.header), gpu=journal.header["gpu"])
    return Outcome(held, sum(bool(held[contest.name].finals(contest, rounds)) for contest in contests), before, after)


def _commit(given: str, header: Mapping) -> str:
    recorded = header.get("commit", "unknown")
    return given if recorded == "unknown" else recorded
