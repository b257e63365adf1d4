"""The op of a whole layer: torch's own checks, few graphs for every token count, the eager call's bits and errors."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import chord_jit
from chord_jit import ops
from chord_jit.errors import InputError
from tests.unit.layers.random_layer import random_layer

pytestmark = pytest.mark.usefixtures("reference_backend", "fresh_compiler")
EXPERTS, HIDDEN, NEURONS, TOP_K = 4, 64, 32, 2
EXPERT_MAP = torch.tensor([2, -1, 0, 3, 1, -1], dtype=torch.int32)


def layer(mapped: bool = False, shared: bool = False) -> chord_jit.MoELayer:
    module = torch.nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16).requires_grad_(False) if shared else None
    weights = random_layer(EXPERTS, HIDDEN, NEURONS)
    return chord_jit.MoELayer(weights, top_k=TOP_K, expert_map=EXPERT_MAP if mapped else None, shared=module)


def inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(tokens, HIDDEN).bfloat16(), torch.randint(-1, 6, (tokens, TOP_K)), torch.rand(tokens, TOP_K)


def op_arguments(one: chord_jit.MoELayer, tokens: int) -> tuple:
    """What the layer hands to the op while compiling."""
    x, ids, weights = inputs(tokens)
    addend = None if one.shared is None else one.shared(x)
    with patch.object(ops, "_call", lambda name, given, out: given):
        return ops.moe(x, one.weights, ids, weights, TOP_K, one.expert_map, addend, one.workspace_bytes, None)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("mapped, shared", [(False, False), (True, True)], ids=["plain", "map and shared"])
def test_torchs_own_checks_pass(tokens, mapped, shared, seed):
    given = op_arguments(layer(mapped, shared), tokens)
    own = torch.ops.chord_jit
    for op, arguments in ((own.moe.default, given), (own.moe_out.default, (*given, torch.empty_like(given[0])))):
        found = torch.library.opcheck(op, arguments)
        assert set(found.values()) == {"SUCCESS"} and len(found) == 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_serves_every_token_count(backend, seed):
    one, counter = layer(True, True), CompileCounterWithBackend(backend)
    function = torch.compile(lambda *given: one(*given).float() + 1, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (5, 2, 40, 9):
        given = inputs(tokens)
        assert torch.equal(function(*given), one(*given).float() + 1)
    assert counter.frame_count == 1


def test_out_is_written(seed):
    one, given = layer(), inputs(6)
    out = torch.full((6, HIDDEN), float("nan")).bfloat16()
    function = torch.compile(lambda x, ids, weights, out: one(x, ids, weights, out=out), fullgraph=True, backend="aot_eager")
    function(*given, out)
    assert torch.equal(out, one(*given))


def test_a_broken_rule_raises_its_own_error_when_the_graph_runs(seed):
    one, (x, ids, weights) = layer(), inputs(6)
    function = torch.compile(lambda *given: one(*given), fullgraph=True, backend="aot_eager")
    with pytest.raises(InputError, match="topk_ids"):
        function(x, ids[:4], weights)


def test_a_layer_can_be_exported(seed):
    one, given = layer(True), inputs(6)
    program = torch.export.export(one, given)
    assert torch.equal(program.module()(*given), one(*given))
    assert "chord_jit.moe" in str(program.graph)
