"""vLLM's own Python classes over the plugin and the kernels; stand-ins in torch for vLLM's compiled operators (``clients.vllm.stand_ins``).

Needs vLLM's and Humming's Python files: named by ``TEST_VLLM_TREE``, or fetched before into the user's cache. Nothing is fetched here.
"""

from __future__ import annotations

import json
import os

import pytest
from filelock import FileLock

from tests.clients.vllm import on_gpu, scenarios, trees
from tests.clients.vllm.run import in_child

pytestmark = pytest.mark.skipif(not trees.there(), reason="vLLM's Python files are not here: TEST_VLLM_TREE names them")


@pytest.fixture(scope="module")
def outcome(gpu, tmp_path_factory) -> dict[str, str]:
    """Of one child, which workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "vllm-client"
    folder.mkdir(exist_ok=True)
    found = folder / "outcome.json"
    with FileLock(folder / "lock"):
        if not found.exists():
            found.write_text(json.dumps(in_child(trees.tree(), folder, str(gpu))))
    return json.loads(found.read_text())


@pytest.mark.parametrize("name", [*scenarios.SCENARIOS, *on_gpu.SCENARIOS])
def test_scenario(outcome, name):
    assert outcome[name] == "", outcome[name]
