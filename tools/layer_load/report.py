"""What was found of a layer's load as markdown: what the tool prints, and the block of ``docs/formats.md``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from tools.record import provenance

TARGET_SECONDS = 2.0
NOTHING = "No load has been recorded yet: `python tools/measure_layer_load.py OUT.json --commit COMMIT` makes one."


def block(run: Mapping | None) -> str:
    """Where it ran, and a table of one row: medians of its loads, the first of the process apart."""
    if run is None:
        return NOTHING
    sizes, loads = run["sizes"], run["loads"]
    seconds = median(load["seconds"] for load in loads)
    heads = [
        "checkpoint", "packed", "seconds", "first load", f"target {TARGET_SECONDS:g} s", "host memory beyond the mapped files",
        "GPU memory beyond the result",
    ]  # fmt: skip
    above = [load["gpu_bytes"] - run["packed_bytes"] for load in loads if load["gpu_bytes"] is not None]
    cells = [
        _megabytes(run["checkpoint_bytes"]), _megabytes(run["packed_bytes"]), f"{seconds:.2f}", f"{loads[0]['seconds']:.2f}",
        "met" if seconds < TARGET_SECONDS else "**missed**", _megabytes(max(load["host_bytes"] for load in loads)),
        _megabytes(max(above)) if above else "-",
    ]  # fmt: skip
    return "\n".join([
        f"{provenance(run)} One layer of {sizes['experts']} experts, hidden {sizes['hidden']}, intermediate",
        f"{sizes['intermediate']}, from the page cache to {run['device']}; median of {len(loads)} loads of a process, most memory of any.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + " ---: |" * len(heads),
        "| " + " | ".join(cells) + " |",
    ])  # fmt: skip


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
