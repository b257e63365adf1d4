"""A kernel's table of measured schedules: one row of JSON a line, sorted by its key and its range.

A row serves one problem on a GPU of its architecture and SM count, for rows_lo <= local routed rows < rows_hi. ``layout``
says how the rows lie: ``indexed``, ``masked``, or ``contiguous`` with or without padding. ``us``: its measured time at
``at_rows`` local rows, with the GPU and commit it was measured on. Of the kernels that can serve a problem only the fastest
one's table holds a row for it, so tables never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources

from chord_jit.schedules.schedule import Schedule

KEY = ("arch", "sms", "layout", "n", "k", "experts", "swiglu")
FIELDS = (*KEY, "rows_lo", "rows_hi", "schedule", "us", "at_rows", "commit", "gpu")
LAYOUTS = ("contiguous", "indexed", "masked")


def read(kernel: str) -> list[dict]:
    """The rows of ``tables/<kernel>.json`` as they stand."""
    text = resources.files("chord_jit.schedules.tables").joinpath(f"{kernel}.json").read_text(encoding="utf-8")
    return json.loads(text)["rows"]


def render(rows: Iterable[Mapping]) -> str:
    """The content of a table file with these rows, in the one order and form that a table has."""
    ordered = sorted(rows, key=lambda row: (*(row[name] for name in KEY), row["rows_lo"]))
    lines = [f"  {json.dumps({name: row[name] for name in FIELDS})}" for row in ordered]
    return '{"rows": [\n' + ",\n".join(lines) + "\n]}\n" if lines else '{"rows": []}\n'


@lru_cache(maxsize=None)
def load(kernel: str) -> dict[tuple, tuple[tuple[int, int, Schedule], ...]]:
    """Range and schedule of every row by problem key; each value is sorted by rows_lo."""
    found: dict[tuple, list] = {}
    for row in read(kernel):
        schedule = Schedule(kernel, **row["schedule"])
        found.setdefault(tuple(row[name] for name in KEY), []).append((row["rows_lo"], row["rows_hi"], schedule))
    return {key: tuple(sorted(ranges)) for key, ranges in found.items()}


def find(kernel: str, *, arch: str, sms: int, layout: str, n: int, k: int, experts: int, swiglu: bool, rows: float) -> Schedule | None:
    """The measured schedule for a problem, or ``None`` where no row covers it."""
    for low, high, schedule in load(kernel).get((arch, sms, layout, n, k, experts, swiglu), ()):
        if low <= rows < high:
            return schedule
    return None
