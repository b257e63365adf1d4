"""A result as a table on a terminal and as Markdown: the same columns, losing rows marked."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from chord_jit.bench import columns, results
from chord_jit.bench.columns import status

__all__ = ["heading", "markdown_table", "status", "table"]

_WORDS = ("layer", "layout", "verdict")


def heading(result: Mapping) -> str:
    """One line: what ran where."""
    peer = f"{result['peer']['name']} {result['peer']['version']}" if result["peer"] else "no peer"
    clocks = result["clocks"]
    return (
        f"{result['case_set']} on {result['gpu']}, driver {clocks['driver']}, torch {result['torch']}, CUDA {result['cuda']}, "
        f"{peer}, commit {result['commit'][:12]}, {result['date']}"
    )


def table(result: Mapping) -> Table:
    """The rows of ``result`` for a terminal, without what only pages have room for."""
    shown = Table(title=heading(result), caption="; ".join(results.doubts(result)) or None)
    chosen = [column for column in columns.filled(columns.FULL, result["rows"]) if not column.detail]
    for column in chosen:
        shown.add_column(column.title, justify="left" if column.title in _WORDS else "right")
    for row in result["rows"]:
        shown.add_row(*(column.show(row) for column in chosen), style=None if status(row) == "pass" else "red")
    return shown


def markdown_table(result: Mapping, which: Mapping = columns.FULL) -> str:
    """The same table in Markdown, or one of other columns; a losing row is bold where it says so."""
    chosen = columns.filled(which, result["rows"])
    lines = ["| " + " | ".join(column.title for column in chosen) + " |", "|" + " --- |" * len(chosen)]
    for row in result["rows"]:
        cells = [column.show(row) for column in chosen]
        if chosen[-1].title == "verdict" and cells[-1] != "pass":
            cells[-1] = f"**misses: {cells[-1]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
