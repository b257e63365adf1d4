"""The start-up comparison as markdown: the table that the tool prints, and the block of ``docs/cache.md``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from tools.record import provenance
from tools.startup.job import WRONG_ABOVE

NOTHING = "No run on a GPU has been recorded yet: `python tools/measure_startup.py OUT.json --commit COMMIT` makes one."
_STEPS = ("torch", "cuda", "import", "prepare", "first", "second")
_HEADS = ("library", "cache", "`import torch`", "CUDA", "import", "weights", "first call", "second call")


def block(run: Mapping | None) -> str:
    """Everything that a page says of a run."""
    if run is None:
        return NOTHING
    return "\n\n".join(("\n".join(_heading(run)), table(run), "\n".join(_others(run))))


def table(run: Mapping) -> str:
    """One row for each library and state of its cache: the medians of its processes, in milliseconds."""
    lines = ["| " + " | ".join(_HEADS) + " |", "| --- | --- |" + " ---: |" * len(_STEPS)]
    for start in run["starts"]:
        good = [one for one in start["runs"] if "failed" not in one and one["error"] <= WRONG_ABOVE]
        if good:
            cells = [f"{median(one['ms'][step] for one in good):.1f}" for step in _STEPS]
            if len(good) < len(start["runs"]):
                cells[-1] += f" ({len(start['runs']) - len(good)} of {len(start['runs'])} failed)"
        else:
            cells = [_problem(start["runs"][0]), *[""] * (len(_STEPS) - 1)]
        lines.append("| " + " | ".join((start["library"], start["cache"], *cells)) + " |")
    return "\n".join(lines)


def _problem(one: Mapping) -> str:
    if "failed" in one:
        return "failed: " + " ".join(one["failed"].split())[-160:].replace("|", "/")
    return f"wrong result: relative error {one['error']:.3g}"


def _heading(run: Mapping) -> list[str]:
    job = run["job"]
    return [
        f"{provenance(run)} W4A16, E={job['experts']}, N={job['n']}, K={job['k']}, {job['tokens']} tokens on",
        f"{job['top_k']} experts each; medians of {run['repeat']} processes, milliseconds.",
    ]


def _others(run: Mapping) -> list[str]:
    lines = []
    counts = [f"{start['cache']}: {_most(start, 'compiles')}" for start in run["starts"] if start["library"] == "chord_jit"]
    if counts:
        lines.append(f"- compiles of chord_jit in one process: {', '.join(counts)}")
    opening, lookup, ranks = run["opening"], run["lookup"], run["ranks"]
    if "failed" not in opening:
        lines.append(f"- the host's half of a first call on a full cache (choose, key, find, check): {opening['ms']['first']:.1f} ms")
    if "failed" not in lookup:
        lines.append(
            f"- a warm lookup: {lookup['resolve_us']:.2f} us to the schedule, {lookup['handle_us']:.2f} us to the handle, "
            f"{lookup['system_calls']} system calls, {lookup['audit_events']} audit events"
        )
    if "failed" not in ranks:
        lines.append(
            f"- {ranks['processes']} processes that want {ranks['kernels']} kernels, nothing cached: {ranks['compiles']} compiles, "
            f"{ranks['seconds']:.1f} s"
        )
    for name in ("opening", "lookup", "ranks"):
        if "failed" in run[name]:
            lines.append(f"- {name}: {_problem(run[name])}")
    return lines


def _most(start: Mapping, counter: str) -> object:
    return max((one[counter] for one in start["runs"] if "failed" not in one), default="?")
