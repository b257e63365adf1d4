"""The picture of a result, one panel a layer: time per call by tokens, or the rate by rows below its roofs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chord_jit.bench import report, targets

#: Inches that heading and legend take side by side.
_LEAST_WIDTH = 9.6
#: Variant, label and colour, in the order of the bars.
_READER = ("reader", "read only", "#9aa0a6")
_SERIES = (
    ("ours", "chord_jit", "#1a73e8"),
    ("ours_swiglu", "chord_jit with SwiGLU", "#12b5cb"),
    ("peer_best", "{peer}, best of its own", "#f29900"),
    ("peer_default", "{peer}, default", "#e8710a"),
)


@dataclass(frozen=True)
class _View:
    """How a kind's rows are drawn. ``bars``: series; ``lines``: roofs across them, which no bar should pass; ``tick``: field of a row;
    ``scale``: of the axis upwards."""

    bars: tuple[tuple[str, str, str], ...]
    lines: tuple[tuple[str, str, str], ...]
    value: Callable[[Mapping, str], float | None]
    across: str
    up: str
    tick: str = "size"
    scale: str = "linear"


_DENSE = ("cublas", "cuBLAS 8192^3", "#202124")
_PRODUCTS = ("products", "chord_jit, both products alone", "#202124")
_RATE = "TFLOP/s, L2 cold"
_VIEWS = {
    "indexed": _View((_READER, *_SERIES), (), targets.median, "tokens", "us per call, L2 cold"),
    "prefill": _View(_SERIES, (_DENSE,), targets.tflops, "routed rows", _RATE, "rows"),
    "grouped": _View(_SERIES, (_DENSE, _READER), targets.tflops, "rows per expert", _RATE),
    # From one token to thousands: a hundred microseconds and some milliseconds in one panel.
    "layer": _View(_SERIES, (_PRODUCTS,), lambda row, name: targets.products(row) if name == "products" else targets.median(row, name),
                   "tokens", "us per layer, L2 cold", scale="log"),
}


def draw(result: Mapping, path: Path) -> None:
    """Write a PNG of ``result`` to ``path``. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(row["layer"] for row in result["rows"]))
    figure = Figure(figsize=(max(6.4 * len(layers), _LEAST_WIDTH), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for axis, layer in zip(axes, layers, strict=True):
        _panel(axis, [row for row in result["rows"] if row["layer"] == layer], result["peer"])
        axis.set_title(layer)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(report.heading(result), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _panel(axis, rows: list[Mapping], peer: Mapping | None) -> None:
    view = _VIEWS[targets.kind(rows[0])]
    timed = [entry for entry in view.bars if any(view.value(row, entry[0]) is not None for row in rows)]
    width = 0.84 / max(1, len(timed))
    for index, (variant, label, colour) in enumerate(timed):
        heights = [view.value(row, variant) or float("nan") for row in rows]
        places = [place + (index - (len(timed) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, heights, width, color=colour, label=label.format(peer=peer["name"] if peer else ""))
    for variant, label, colour in view.lines:
        roofs = [(place, value) for place, row in enumerate(rows) if (value := view.value(row, variant)) is not None]
        if roofs:
            places, values = zip(*roofs, strict=True)
            axis.hlines(values, [p - 0.45 for p in places], [p + 0.45 for p in places], color=colour, label=label)
    axis.set_xticks(range(len(rows)), [str(row[view.tick]) for row in rows])
    axis.set_xlabel(view.across)
    axis.set_ylabel(view.up)
    axis.set_yscale(view.scale)
    axis.spines[["top", "right"]].set_visible(False)
