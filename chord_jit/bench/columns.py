"""What a table shows of a measured row, by kind; a column that no row of a result fills is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chord_jit.bench import targets
from chord_jit.bench.targets import median, quotient, tflops

NOTHING = "-"


@dataclass(frozen=True)
class Column:
    """A heading and what it shows of one row. ``detail``: for pages alone, a terminal is not wide enough for everything."""

    title: str
    show: Callable[[Mapping], str]
    detail: bool = False


def status(row: Mapping) -> str:
    """``pass``, or every rule that the row misses; what went wrong where ours was not timed."""
    if median(row, "ours") is None:
        refused = row["variants"].get("ours", {}).get("refused")
        return f"refused: {' '.join(refused.split())}" if refused else "wrong result"
    missed = [str(verdict) for verdict in targets.verdicts(row) if not verdict.passed]
    return "; ".join(missed) if missed else "pass"


def number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _field(row: Mapping, variant: str, *path: str) -> float | None:
    found = row["variants"].get(variant)
    for key in path:
        found = (found or {}).get(key)
    return found


def _several(values: list[float | None], digits: int) -> str:
    return NOTHING if not any(value is not None for value in values) else " / ".join(number(value, digits) for value in values)


def _time(variant: str) -> Callable[[Mapping], str]:
    return lambda row: number(median(row, variant))


def _times(variants: tuple[str, ...]) -> Callable[[Mapping], str]:
    return lambda row: _several([median(row, name) for name in variants], 1)


def _spread(row: Mapping) -> str:
    us = _field(row, "ours", "us")
    return NOTHING if us is None else f"{us['p10']:.1f}-{us['p90']:.1f}"


def _errors(row: Mapping) -> str:
    return _beside([_field(row, name, "error") for name in ("ours", "ours_swiglu")])


def _beside(errors: list[float | None]) -> str:
    return " / ".join(f"{error:.2e}" for error in errors if error is not None) or NOTHING


def _sustained(field: str, digits: int, variants: tuple[str, ...]) -> Callable[[Mapping], str]:
    return lambda row: _several([_field(row, name, "sustained", field) for name in variants], digits)


def _picojoules(row: Mapping, variant: str) -> float | None:
    """Energy of one operation."""
    mj = _field(row, variant, "sustained", "mj")
    return None if mj is None else 1e9 * mj / row["variants"][variant].get("flops", row["flops"])


def _of_reader(row: Mapping) -> str:
    return _percent(quotient(median(row, "reader"), median(row, "ours")))


def _of_cublas(row: Mapping) -> str:
    return _percent(quotient(tflops(row, "ours"), tflops(row, "cublas")))


def _ratio(row: Mapping) -> str:
    return number(quotient(targets.peer_time(row), median(row, "ours")), 2)


def _gbps(row: Mapping) -> str:
    ours = median(row, "ours")
    return NOTHING if ours is None else f"{row['bytes'] / ours / 1e3:.0f}"


_MEGABYTES = Column("MB", lambda row: f"{row['bytes'] / 1e6:.0f}", detail=True)
_LAYER = Column("layer", lambda row: row["layer"])
_MOST_ROWS = Column("most rows", lambda row: NOTHING if row["seed"] is None else str(row["busiest"]), detail=True)
_ROUTED = (
    Column("tokens", lambda row: NOTHING if row["size"] == row["rows"] else str(row["size"])),
    Column("routed rows", lambda row: str(row["rows"])),
)
_READER = Column("reader us", _time("reader"))
_OURS = (Column("ours us", _time("ours")), Column("p10-p90", _spread, detail=True))
_OF_READER, _OF_CUBLAS = Column("of reader", _of_reader), Column("of cuBLAS", _of_cublas)
_SWIGLU = Column("with SwiGLU us", _time("ours_swiglu"))
_RATIO = Column("peer best / ours", _ratio)
_PEER = (
    Column("peer default us", _time("peer_default"), detail=True),
    Column("peer best us", lambda row: number(targets.peer_best(row))),
    _RATIO,
)
_RATES = (
    Column("TFLOP/s", lambda row: number(tflops(row, "ours"), 0)),
    Column("cuBLAS TFLOP/s", lambda row: number(tflops(row, "cublas"), 0), detail=True),
    _OF_CUBLAS,
)
_BESIDE = ("ours", "peer_best", "cublas")
_ENERGY = (
    Column("in a row, us ours / peer / cuBLAS", _sustained("us", 1, _BESIDE), detail=True),
    Column("mJ ours / peer / cuBLAS", _sustained("mj", 0, _BESIDE), detail=True),
    Column("pJ/flop ours / peer / cuBLAS", lambda row: _several([_picojoules(row, one) for one in _BESIDE], 2)),
)
_PIECES = ("gate_up", "down", "route", "combine")
_PEER_PIECES = tuple(f"peer_{name}" for name in ("align", "gate_up", "swiglu", "down", "combine"))
_END = (Column("error", _errors, detail=True), Column("verdict", status))

#: Every column of a kind's tables.
FULL: dict[str, tuple[Column, ...]] = {
    "indexed": (
        _LAYER,
        Column("tokens", lambda row: str(row["size"])),
        Column("experts", lambda row: str(row["active"]), detail=True),
        _MEGABYTES,
        _READER,
        *_OURS,
        Column("GB/s", _gbps),
        _OF_READER,
        _SWIGLU,
        *_PEER,
        Column("in a row, us ours / peer / reader", _sustained("us", 1, ("ours", "peer_best", "reader")), detail=True),
        Column("mJ ours / peer / reader", _sustained("mj", 0, ("ours", "peer_best", "reader"))),
        *_END,
    ),
    "prefill": (_LAYER, *_ROUTED, _MOST_ROWS, _MEGABYTES, *_OURS, *_RATES, _SWIGLU, *_PEER, *_ENERGY, *_END),
    "grouped": (
        _LAYER,
        Column("layout", lambda row: row["layout"]),
        Column("rows", lambda row: str(row["size"])),
        _MOST_ROWS,
        _MEGABYTES,
        _READER,
        *_OURS,
        *_RATES,
        _OF_READER,
        _SWIGLU,
        Column("by m_indices us", _time("ours_m_indices")),
        Column("equal rows us", _time("ours_equal")),
        Column("over equal rows", lambda row: number(quotient(median(row, "ours"), median(row, "ours_equal")), 3)),
        *_PEER,
        *_ENERGY,
        *_END,
    ),
    "layer": (
        *_ROUTED,
        _MEGABYTES,
        *_OURS,
        Column("gate/up / down / route / combine us", _times(_PIECES)),
        Column("beyond both products us", lambda row: number(targets.over_products(row))),
        Column("over both products", lambda row: number(quotient(median(row, "ours"), targets.products(row)), 3)),
        *_PEER,
        Column("its align / gate/up / SwiGLU / down / combine us", _times(_PEER_PIECES), detail=True),
        Column("mJ ours / peer", _sustained("mj", 0, ("ours", "peer_best"))),
        Column("error ours / peer", lambda row: _beside([_field(row, name, "error") for name in ("ours", "peer_best")]), detail=True),
        _END[-1],
    ),
}

_MET = Column("targets", lambda row: "met" if status(row) == "pass" else "**missed**")

#: What a reader in a hurry wants to know.
COMPACT: dict[str, tuple[Column, ...]] = {
    "indexed": (_LAYER, Column("tokens", lambda row: str(row["size"])), _OURS[0], _OF_READER, _RATIO, _MET),
    "prefill": (_LAYER, *_ROUTED, _OURS[0], _RATES[0], _OF_CUBLAS, _RATIO, _MET),
    "grouped": (
        _LAYER,
        Column("layout", lambda row: row["layout"]),
        Column("rows", lambda row: str(row["size"])),
        _OURS[0],
        _OF_READER,
        _OF_CUBLAS,
        _RATIO,
        _MET,
    ),
    "layer": (*_ROUTED, _OURS[0], Column("beyond both products us", lambda row: number(targets.over_products(row))), _RATIO, _MET),
}


def filled(columns: Mapping[str, tuple[Column, ...]], rows: list[Mapping]) -> list[Column]:
    """The columns of the rows' kind in which at least one row has something to show."""
    return [column for column in columns[targets.kind(rows[0])] if any(column.show(row) != NOTHING for row in rows)] if rows else []
