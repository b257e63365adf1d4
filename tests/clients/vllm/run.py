"""Scenarios in this process: ``python -m tests.clients.vllm.run TREE RESULT DEVICE``. RESULT is JSON, a scenario's name to "" or its
traceback. On a GPU those that need one run too.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import torch

from tests.clients.vllm import on_gpu, scenarios
from tests.clients.vllm.engine import Engine

ROOT = Path(__file__).resolve().parents[3]
_SECONDS = 900


def main(tree: str, result: str, device: str) -> None:
    logging.basicConfig(level=logging.INFO)
    engine = Engine(Path(tree), device)
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device(device), num_ubatches=1)
    outcome = {}
    for name, scenario in (scenarios.SCENARIOS if device == "cpu" else {**scenarios.SCENARIOS, **on_gpu.SCENARIOS}).items():
        torch.manual_seed(0)
        try:
            scenario(engine)
            outcome[name] = ""
        except Exception:
            outcome[name] = traceback.format_exc()
    Path(result).write_text(json.dumps(outcome))


def in_child(tree: Path, folder: Path, device: str, **environment: str) -> dict[str, str]:
    """The outcome of all scenarios for ``device``, and what was said as ``log``. A child that breaks is an assertion with its output."""
    result = folder / "result.json"
    command = [sys.executable, "-m", "tests.clients.vllm.run", str(tree), str(result), device]
    others = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    given = {**others, "PYTHONPATH": str(ROOT), "VLLM_NO_USAGE_STATS": "1", **environment}
    child = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=_SECONDS)
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-4000:]
    return {**json.loads(result.read_text()), "log": child.stdout + child.stderr}


if __name__ == "__main__":
    main(*sys.argv[1:])
