"""vLLM's own Python classes over our plugin, on the CPU: selection, creation and conversion of weights, the experts' ``apply``.

They run in one process of their own, since importing vLLM changes torch. ``scenarios`` says what each checks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.vllm import trees
from tests.clients.vllm.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(trees.SKIPPED, reason="CHORD_VLLM_TREE=none")
_SECONDS = 600


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> dict[str, str]:
    """Traceback of each scenario, empty where it passed. Fetches what is missing; a fetch that fails is an error of every test."""
    result = tmp_path_factory.mktemp("vllm") / "result.json"
    command = [sys.executable, "-m", "tests.clients.vllm.scenarios", str(trees.tree()), str(result)]
    others = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = {**others, "CHORD_BACKEND": "reference", "PYTHONPATH": str(ROOT), "VLLM_NO_USAGE_STATS": "1"}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-4000:]
    return {**json.loads(result.read_text()), "log": child.stdout + child.stderr}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(outcome, name):
    assert outcome[name] == "", outcome[name]


def test_one_line_says_which_path_a_kind_of_layer_took(outcome):
    lines = [line for line in outcome["log"].splitlines() if "chord_jit: " in line]
    served = [line for line in lines if "serves MoE layers with 16 experts, N 256, K 256" in line]
    left = [line for line in lines if "leaves MoE layers with 16 experts, N 256, K 256 to Humming" in line]
    assert len(served) == len(left) == 1
    assert len(lines) == len(set(lines))
