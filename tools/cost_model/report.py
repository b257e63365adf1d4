"""What was found of the cost model's choices as markdown: the block of ``docs/schedules.md``."""

from __future__ import annotations

from collections.abc import Mapping

from tools.record import provenance

NOTHING = "No run on a GPU has been recorded yet: `python tools/check_cost_model.py --json FILE --commit COMMIT` makes one."
_HEADS = ("problem", "routed rows", "choice", "us", "best of those timed", "us", "ratio", "schedules timed")


def block(run: Mapping | None) -> str:
    """Where it ran, how many problems pass, and a row for each."""
    if run is None:
        return NOTHING
    problems = run["problems"]
    passed = sum(problem["passed"] for problem in problems)
    return "\n".join([
        f"{provenance(run)} Command: `{run['command']}`.",
        f"{passed} of {len(problems)} problems pass: the choice takes at most {run['most_ratio']:g} times the best, no result is wrong.",
        f"Problems are model, ranks, projection, experts x N x K; times are medians of {run['rounds']} turns, L2 overwritten before each.",
        "",
        "| " + " | ".join(_HEADS) + " |",
        "| --- | ---: | --- | ---: | --- | ---: | ---: | ---: |",
        *map(_row, problems),
    ])  # fmt: skip


def _row(problem: Mapping) -> str:
    chosen = "-" if problem["choice_us"] is None else f"{problem['choice_us']:.1f}"
    cells = (
        problem["problem"], str(problem["rows"]), f"`{problem['choice']}`", chosen, f"`{problem['best']}`", f"{problem['best_us']:.1f}",
        _ratio(problem), str(len(problem["us"])),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _ratio(problem: Mapping) -> str:
    """In bold where the problem misses; ``wrong`` for each schedule that computed something else."""
    told = [] if problem["ratio"] is None else [f"{problem['ratio']:.2f}"]
    told += [f"wrong: {name}" for name in problem["wrong"]]
    return ", ".join(told) if problem["passed"] else f"**{', '.join(told)}**"
