"""Read a kernel's table of measured schedules.

A row serves one problem on a GPU of its architecture and SM count, for rows_lo <= local routed rows < rows_hi. ``us``: its
measured time at ``at_rows`` local rows, with the GPU and commit it was measured on.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources

from chord_jit.schedules.schedule import Schedule

_KEY = ("arch", "sms", "n", "k", "experts", "swiglu")


@lru_cache(maxsize=None)
def load(kernel: str) -> dict[tuple, tuple[tuple[int, int, Schedule], ...]]:
    """Rows of ``tables/<kernel>.json`` by problem key; each value is sorted by rows_lo."""
    text = resources.files("chord_jit.schedules.tables").joinpath(f"{kernel}.json").read_text(encoding="utf-8")
    found: dict[tuple, list] = {}
    for row in json.loads(text)["rows"]:
        schedule = Schedule(kernel, **row["schedule"])
        found.setdefault(tuple(row[name] for name in _KEY), []).append((row["rows_lo"], row["rows_hi"], schedule))
    return {key: tuple(sorted(rows)) for key, rows in found.items()}


def find(kernel: str, *, arch: str, sms: int, n: int, k: int, experts: int, swiglu: bool, rows: float) -> Schedule | None:
    """The measured schedule for a problem, or ``None`` where no row covers it."""
    for low, high, schedule in load(kernel).get((arch, sms, n, k, experts, swiglu), ()):
        if low <= rows < high:
            return schedule
    return None
