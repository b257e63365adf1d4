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
from pathlib import Path

from chord_jit.schedules.schedule import Schedule

KEY = ("arch", "sms", "layout", "n", "k", "experts", "swiglu")
FIELDS = (*KEY, "rows_lo", "rows_hi", "schedule", "us", "at_rows", "commit", "gpu")
LAYOUTS = ("contiguous", "indexed", "masked")
#: Layouts of calls whose rows lie alike: exact offsets, and expert blocks padded to 128.
_ALIKE = {"offsets": "contiguous", "blocks": "contiguous"}
FOLDER = Path(__file__).parent / "tables"


def layout_of(call: str) -> str:
    """The layout that rows name, of a call's own."""
    return _ALIKE.get(call, call)


def kernels() -> list[str]:
    """The kernels that have a table, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read(kernel: str) -> list[dict]:
    """The rows of ``tables/<kernel>.json`` as they stand."""
    return json.loads((FOLDER / f"{kernel}.json").read_text(encoding="utf-8"))["rows"]


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
    """The measured schedule for a problem, or ``None`` where no row covers it. ``layout``: of the call or of the rows."""
    for low, high, schedule in load(kernel).get((arch, sms, layout_of(layout), n, k, experts, swiglu), ()):
        if low <= rows < high:
            return schedule
    return None


def fastest(problem: object) -> Schedule | None:
    """The measured schedule for a W4A16 problem, of whichever kernel; ``None`` where no row covers it."""
    found = (
        find(
            kernel, arch=problem.facts.arch, sms=problem.facts.sms, layout=problem.layout, n=problem.n, k=problem.k,
            experts=problem.experts, swiglu=problem.swiglu, rows=problem.expected_rows * problem.experts,
        )
        for kernel in kernels()
    )  # fmt: skip
    return next(filter(None, found), None)
