"""What the measuring tools write down alike: where, when and of what a run was made, its file, and how a page says it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

SCHEMA = 1
_PACKAGES = ("torch", "triton", "humming-kernels", "cuda-bindings", "nvidia-cuda-nvrtc")


def origin(commit: str) -> dict[str, object]:
    """The fields that every run begins with. ``commit``: what was measured."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "date": date, "commit": commit, "machine": machine(), "versions": versions()}


def machine() -> dict[str, object]:
    """Facts of the machine; ``none`` for a GPU that is not there."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        name, driver = (part.strip() for part in told.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        name = driver = "none"
    return {"gpu": name, "driver": driver, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """Of the packages that take part and are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def save(run: Mapping, path: Path) -> None:
    """Write ``run`` to ``path``, whose folder is made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def newest(folder: Path) -> dict | None:
    """The newest run in ``folder``, by its own date; None without one."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return max((run for run in runs if run["schema"] == SCHEMA), key=lambda run: run["date"], default=None)


def provenance(run: Mapping) -> str:
    """Two lines of a page that end with the date. Cores and Python are told where the run holds them."""
    machine = run["machine"]
    facts = [machine["gpu"], f"driver {machine['driver']}"]
    facts += [f"{machine['cores']} cores"] if "cores" in machine else []
    facts += [f"Python {machine['python']}"] if "python" in machine else []
    packages = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{', '.join(facts)}; {packages}; commit\n{run['commit'][:12]}, {run['date'][:10]}."
