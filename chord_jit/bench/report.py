"""A result as a table on a terminal and as Markdown: the same columns, losing rows marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.table import Table

from chord_jit.bench import results, targets


@dataclass(frozen=True)
class Column:
    """A heading and what it shows of one row."""

    title: str
    show: Callable[[Mapping], str]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _quotient(above: float | None, below: float | None, digits: int = 2) -> str:
    return "-" if above is None or below is None else f"{above / below:.{digits}f}"


def _percent(above: float | None, below: float | None) -> str:
    return "-" if above is None or below is None else f"{100 * above / below:.1f} %"


def _field(row: Mapping, variant: str, *path: str) -> float | None:
    found = row["variants"].get(variant)
    for key in path:
        found = (found or {}).get(key)
    return found


def _spread(row: Mapping) -> str:
    us = _field(row, "ours", "us")
    return "-" if us is None else f"{us['p10']:.1f}-{us['p90']:.1f}"


def _errors(row: Mapping) -> str:
    found = [_field(row, name, "error") for name in ("ours", "ours_swiglu")]
    return " / ".join(f"{error:.2e}" for error in found if error is not None)


def _sustained(field: str, digits: int) -> Callable[[Mapping], str]:
    def show(row: Mapping) -> str:
        found = [_field(row, name, "sustained", field) for name in ("ours", "peer_best", "reader")]
        return " / ".join(_number(value, digits) for value in found)

    return show


def status(row: Mapping) -> str:
    """``pass``, or every rule that the row misses; ``wrong result`` where ours was not timed."""
    if targets.median(row, "ours") is None:
        return "wrong result"
    missed = [str(verdict) for verdict in targets.verdicts(row) if not verdict.passed]
    return "; ".join(missed) if missed else "pass"


def _gbps(row: Mapping) -> str:
    ours = targets.median(row, "ours")
    return "-" if ours is None else f"{row['bytes'] / ours / 1e3:.0f}"


_TIME = targets.median

COLUMNS = (
    Column("layer", lambda row: row["layer"]),
    Column("tokens", lambda row: str(row["tokens"])),
    Column("experts", lambda row: str(row["active"])),
    Column("MB", lambda row: f"{row['bytes'] / 1e6:.0f}"),
    Column("reader us", lambda row: _number(_TIME(row, "reader"))),
    Column("ours us", lambda row: _number(_TIME(row, "ours"))),
    Column("p10-p90", _spread),
    Column("GB/s", _gbps),
    Column("of reader", lambda row: _percent(_TIME(row, "reader"), _TIME(row, "ours"))),
    Column("with SwiGLU us", lambda row: _number(_TIME(row, "ours_swiglu"))),
    Column("peer default us", lambda row: _number(_TIME(row, "peer_default"))),
    Column("peer best us", lambda row: _number(targets.peer_best(row))),
    Column("peer best / ours", lambda row: _quotient(targets.peer_best(row), _TIME(row, "ours"))),
    Column("in a row, us ours / peer / reader", _sustained("us", 1)),
    Column("mJ ours / peer / reader", _sustained("mj", 0)),
    Column("error", _errors),
    Column("verdict", status),
)


def heading(result: Mapping) -> str:
    """One line: what ran where."""
    peer = f"{result['peer']['name']} {result['peer']['version']}" if result["peer"] else "no peer"
    clocks = result["clocks"]
    return (
        f"{result['case_set']} on {result['gpu']}, driver {clocks['driver']}, torch {result['torch']}, CUDA {result['cuda']}, "
        f"{peer}, commit {result['commit'][:12]}, {result['date']}"
    )


def table(result: Mapping) -> Table:
    """The rows of ``result`` for a terminal."""
    shown = Table(title=heading(result), caption="; ".join(results.doubts(result)) or None)
    for column in COLUMNS:
        shown.add_column(column.title, justify="left" if column.title in ("layer", "verdict") else "right")
    for row in result["rows"]:
        passed = status(row) == "pass"
        shown.add_row(*(column.show(row) for column in COLUMNS), style=None if passed else "red")
    return shown


def markdown_table(result: Mapping) -> str:
    """The same table in Markdown; a losing row is bold where it loses."""
    lines = ["| " + " | ".join(column.title for column in COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for row in result["rows"]:
        cells = [column.show(row) for column in COLUMNS]
        if cells[-1] != "pass":
            cells[-1] = f"**misses: {cells[-1]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
