"""Results on disk: one JSON per run, tied by a hash to the kernels that it launched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from chord_jit.bench import kernels, targets
from chord_jit.bench.cases import CASES
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError

SCHEMA = 2
#: Case sets that documents quote. Other sets are for quick runs and prove nothing.
PUBLISHED = ("decode", "tp8", "prefill", "prefill_tp8", "grouped", "ragged", "ragged_few", "ep", "layer")


def kernels_hash(result: Mapping) -> str:
    """The hash of what the rows of ``result`` launch on the GPU that it names, as the tree stands.

    A recorded run counts as long as this is the ``kernels_hash`` that it holds: kernels that it never launched may change.
    """
    measured = {row["case"] for row in result["rows"]}
    cases = [case for case in CASES.get(result["case_set"], ()) if case.name in measured]
    return kernels.fingerprint(cases, DeviceFacts(**result["facts"]))


def doubts(result: Mapping) -> list[str]:
    """Why a run is no evidence; empty for one that is."""
    found = []
    if result["case_set"] not in PUBLISHED:
        found.append(f"the {result['case_set']} cases are no deployment")
    absent = [case.name for case in CASES.get(result["case_set"], ()) if case.name not in {row["case"] for row in result["rows"]}]
    if absent:
        found.append(f"cases left out: {', '.join(absent)}")
    found += result["failures"]
    if result["peer"] is None:
        found.append("no peer, not evidence")
    if result["commit"] == "unknown":
        found.append("the commit is not known")
    if result.get("override"):
        found.append(f"schedules overridden: {result['override']}")
    if result["flush"] != "write":
        found.append(f"L2 flushed by {result['flush']}, not by write")
    found += _bar_doubts(result)
    wrong = [row["case"] for row in result["rows"] if targets.median(row, "ours") is None]
    if wrong:
        found.append("wrong results: " + ", ".join(wrong))
    return found


def _bar_doubts(result: Mapping) -> list[str]:
    """A set that holds a weight of the bar's size is void without a reader up to speed at it."""
    bar, layers = result["reader_bar"], {case.layer for case in CASES.get(result["case_set"], ())}
    if bar is None:
        needed = any(targets.bar_experts(layer.expert_bytes) <= layer.experts for layer in layers)
        return [f"void: no reader was measured at {targets.READER_BAR_BYTES / 1e6:.0f} MB"] if needed else []
    speed = bar["bytes"] / bar["us"] / 1e6
    if speed < targets.READER_BAR_TBPS:
        return [f"void: the reader reached {speed:.2f} TB/s at {bar['bytes'] / 1e6:.0f} MB, below {targets.READER_BAR_TBPS}"]
    return []


def file_name(result: Mapping) -> str:
    """``<date>-<gpu>-<case set>-<commit>.json``."""
    stamp = re.sub(r"[^0-9T]", "", result["date"])[:13]
    gpu = result["gpu"].removeprefix("NVIDIA ").lower().replace(" ", "_")
    return f"{stamp}-{gpu}-{result['case_set']}-{result['commit'][:12]}.json"


def save(result: Mapping, folder: Path) -> Path:
    """Write ``result`` under its own name into ``folder``, which is made where missing. Returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> dict:
    """One result. Raises ``InputError`` for a file of another schema."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if result.get("schema") != SCHEMA:
        raise InputError(
            f"read {path.name}", "the file must be of this schema", {"schema": result.get("schema"), "wanted": SCHEMA}, "measure again"
        )
    return result


def newest(folder: Path) -> dict[str, dict]:
    """The newest result of every published case set, by its own date."""
    latest: dict[str, dict] = {}
    for path in sorted(folder.glob("*.json")):
        result = load(path)
        before = latest.get(result["case_set"])
        if result["case_set"] in PUBLISHED and (before is None or before["date"] < result["date"]):
            latest[result["case_set"]] = result
    return latest
