"""The tables after a run, and on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from chord_jit.errors import InputError
from chord_jit.schedules import table
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.decide import Point, choose
from chord_jit.tune.ranges import rows_of

Tables = dict[str, list[dict]]


def current() -> Tables:
    """The rows of every table by kernel."""
    return {kernel: table.read(kernel) for kernel in table.kernels()}


def decided(tables: Tables, found: Sequence[Point], *, commit: str, gpu: str) -> Tables:
    """``tables`` with the winners of ``found`` in them: all rows of a measured key are laid out anew."""
    result = {kernel: list(rows) for kernel, rows in tables.items()}
    for key, group in groupby(found, key=lambda point: point.key):
        same = list(group)
        old = [(kernel, row) for kernel, rows in result.items() for row in rows if _key(row) == key]
        winners = choose(same, _used(result, key))
        for kernel, row in old:
            result[kernel].remove(row)
        for kernel, row in rows_of(same, winners, old, commit=commit, gpu=gpu):
            result.setdefault(kernel, []).append(row)
    return result


def changes(before: Tables, after: Tables) -> list[tuple[str, str, dict]]:
    """Sign, kernel and row of every row that ``after`` lacks (-) or has anew (+), in the order of the tables."""
    found = []
    for kernel in sorted(before.keys() | after.keys()):
        old, new = before.get(kernel, []), after.get(kernel, [])
        found += [("-", kernel, row) for row in old if row not in new] + [("+", kernel, row) for row in new if row not in old]
    return sorted(found, key=lambda change: (_key(change[2]), change[2]["rows_lo"], change[0] == "+"))


def write(tables: Tables, folder: Path = table.FOLDER) -> list[Path]:
    """Put ``tables`` into their files; only files that change are touched, and those are returned. Raises ``InputError``."""
    written = []
    for kernel, rows in tables.items():
        path, content = folder / f"{kernel}.json", table.render(rows)
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as problem:
            raise InputError(
                "write a schedule table",
                "its file must be writable",
                {"file": path, "error": problem.strerror},
                "tune from a checkout; the measurements are in the journal, so --resume it there",
            ) from None
        written.append(path)
    table.load.cache_clear()
    return written


def _key(row: Mapping) -> tuple:
    return tuple(row[name] for name in table.KEY)


def _used(tables: Tables, key: tuple) -> set[Schedule]:
    """Schedules that some row names for the same weight in the same form: their kernels are compiled anyway."""
    same = ("arch", "n", "k", "swiglu")
    wanted = [dict(zip(table.KEY, key, strict=True))[name] for name in same]
    return {
        Schedule(kernel, **row["schedule"]) for kernel, rows in tables.items() for row in rows if [row[name] for name in same] == wanted
    }
