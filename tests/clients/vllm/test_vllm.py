"""vLLM's own Python classes over our plugin, on the CPU: selection, creation and conversion of weights, the experts' ``apply``.

They run in one process of their own, since importing vLLM changes torch. ``scenarios`` says what each checks.
"""

from __future__ import annotations

import pytest

from tests.clients.vllm import trees
from tests.clients.vllm.run import in_child
from tests.clients.vllm.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(trees.SKIPPED, reason="TEST_VLLM_TREE=none")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> dict[str, str]:
    """Traceback of each scenario, empty where it passed. Fetches what is missing; a fetch that fails is an error of every test."""
    return in_child(trees.tree(), tmp_path_factory.mktemp("vllm"), "cpu", CHORD_BACKEND="reference")


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(outcome, name):
    assert outcome[name] == "", outcome[name]


def test_one_line_says_which_path_a_kind_of_layer_took(outcome):
    lines = [line.partition("chord_jit: ")[2] for line in outcome["log"].splitlines() if "chord_jit: " in line]
    served = [line for line in lines if line.startswith("serves MoE layers with 16 experts, N 256, K 256")]
    left = [line for line in lines if line.startswith("leaves MoE layers with 16 experts, N 256, K 256 to Humming")]
    assert len(served) == len(left) == 1
    assert len(lines) == len(set(lines))
