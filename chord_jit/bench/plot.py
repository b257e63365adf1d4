"""The picture of a result: time per call by tokens, one panel a layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chord_jit.bench import report, targets

#: Variant, label and colour, in the order of the bars.
_SERIES = (
    ("reader", "read only", "#9aa0a6"),
    ("ours", "chord_jit", "#1a73e8"),
    ("ours_swiglu", "chord_jit with SwiGLU", "#12b5cb"),
    ("peer_best", "{peer}, best of its own", "#f29900"),
    ("peer_default", "{peer}, default", "#e8710a"),
)


def draw(result: Mapping, path: Path) -> None:
    """Write a PNG of ``result`` to ``path``. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(row["layer"] for row in result["rows"]))
    figure = Figure(figsize=(6.4 * len(layers), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for axis, layer in zip(axes, layers, strict=True):
        _panel(axis, [row for row in result["rows"] if row["layer"] == layer], result["peer"])
        axis.set_title(layer)
    axes[0].legend(frameon=False)
    figure.suptitle(report.heading(result), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _panel(axis, rows: list[Mapping], peer: Mapping | None) -> None:
    timed = [entry for entry in _SERIES if any(targets.median(row, entry[0]) is not None for row in rows)]
    width = 0.84 / len(timed)
    for index, (variant, label, colour) in enumerate(timed):
        heights = [targets.median(row, variant) or float("nan") for row in rows]
        places = [place + (index - (len(timed) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, heights, width, color=colour, label=label.format(peer=peer["name"] if peer else ""))
    axis.set_xticks(range(len(rows)), [str(row["tokens"]) for row in rows])
    axis.set_xlabel("tokens")
    axis.set_ylabel("us per call, L2 cold")
    axis.spines[["top", "right"]].set_visible(False)
