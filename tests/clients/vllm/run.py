"""Scenarios in this process: ``python -m tests.clients.vllm.run TREE RESULT DEVICE``. RESULT is JSON, a scenario's name to "" or its
traceback, written after each, so that a process that is stopped leaves what it found. On a GPU those that need one run too.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

from chord_jit.jit.workers import search_path
from tests.clients.vllm import on_gpu, scenarios
from tests.clients.vllm.engine import Engine

ROOT = Path(__file__).resolve().parents[3]


def main(tree: str, result: str, device: str) -> None:
    logging.basicConfig(level=logging.INFO)
    engine = Engine(Path(tree), device)
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device(device), num_ubatches=1)
    wanted = scenarios.SCENARIOS if device == "cpu" else {**scenarios.SCENARIOS, **on_gpu.SCENARIOS}
    outcome = dict.fromkeys(wanted, "not reached")
    for name, scenario in wanted.items():
        torch.manual_seed(0)
        begin = time.monotonic()
        try:
            scenario(engine)
            outcome[name] = ""
        except Exception:
            outcome[name] = traceback.format_exc()
        Path(result).write_text(json.dumps(outcome))
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


def in_child(tree: Path, folder: Path, device: str, **environment: str) -> dict[str, str]:
    """The outcome of all scenarios for ``device``, and what was said as ``log``. A child that breaks is an assertion with its output.

    A child is stopped after ``TEST_VLLM_SECONDS`` (default 900): scenarios that it did not reach say so.
    """
    result, said = folder / "result.json", folder / "log"
    command = [sys.executable, "-m", "tests.clients.vllm.run", str(tree), str(result), device]
    others = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    found = os.pathsep.join([str(ROOT), search_path()])
    given = {**others, "PYTHONPATH": found, "VLLM_NO_USAGE_STATS": "1", **environment}
    seconds = float(os.environ.get("TEST_VLLM_SECONDS", 900))
    with said.open("w") as log:
        try:
            code = subprocess.run(command, cwd=ROOT, env=given, stdout=log, stderr=subprocess.STDOUT, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = None
    text = said.read_text()
    assert code == 0 or (code is None and result.exists()), text[-8000:]
    return {**json.loads(result.read_text()), "log": text}


if __name__ == "__main__":
    main(*sys.argv[1:])
