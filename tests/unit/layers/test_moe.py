"""A whole layer on the CPU with the reference backend: values, both ways, slices, moves, refusals."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch

import chord_jit
from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.reference.moe import moe
from chord_jit.rows import pipeline
from tests.unit.layers.random_layer import random_layer

HIDDEN, NEURONS, EXPERTS, TOP_K = 64, 32, 6, 3


@pytest.fixture
def call(reference_backend, seed):
    """Weights of a small layer, and a random call of nine tokens that names experts 0 .. 7, two more than there are."""
    weights = random_layer(EXPERTS, HIDDEN, NEURONS)
    ids = torch.rand(9, EXPERTS + 2).argsort(1)[:, :TOP_K].contiguous()
    return weights, torch.randn(9, HIDDEN).bfloat16(), ids, torch.rand(9, TOP_K)


def assert_close(found: torch.Tensor, exact: torch.Tensor) -> None:
    """BF16 rounding of activated rows, of the rows that are added, and of the sum."""
    error = (found.double() - exact).norm() / exact.norm()
    assert 0 < error < 6e-3


@pytest.mark.parametrize("way", ["indexed", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_ways_give_the_sum_over_local_experts(call, way, dtype):
    weights, x, ids, factors = call
    found = pipeline.run(x, weights, ids.to(dtype), factors, TOP_K, way=way)
    assert_close(found, moe(x, weights, ids, factors))


@pytest.mark.parametrize("way", ["indexed", "contiguous"])
def test_a_map_names_local_experts(call, way):
    weights, x, ids, factors = call
    expert_map = torch.tensor([-1, 3, 0, -1, 5, 1, 2, 4], dtype=torch.int32)
    found = pipeline.run(x, weights, ids, factors, TOP_K, expert_map=expert_map, way=way)
    assert_close(found, moe(x, weights, ids, factors, expert_map=expert_map))


def test_slices_change_no_bit(call):
    weights, x, ids, factors = call
    whole = chord_jit.MoELayer(weights, top_k=TOP_K)(x, ids, factors)
    row = 2 * TOP_K * (HIDDEN + NEURONS)
    for size in (1, row, 2 * row + 1, 8 * row):
        assert torch.equal(chord_jit.MoELayer(weights, top_k=TOP_K, workspace_bytes=size)(x, ids, factors), whole)
    assert [pipeline.tokens_at_once(weights, TOP_K, size) for size in (1, row, 2 * row + 1)] == [1, 1, 2]


def test_a_large_workspace_takes_no_more_ids_than_are_grouped_at_once(call):
    weights, x, ids, factors = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K, workspace_bytes=1 << 40)
    assert pipeline.tokens_at_once(weights, TOP_K, layer.workspace_bytes) == 128 * 65535 // TOP_K
    assert_close(layer(x, ids, factors), moe(x, weights, ids, factors))


def test_the_shared_expert_is_added(call):
    weights, x, ids, factors = call
    shared = torch.nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16).requires_grad_(False)
    found = chord_jit.MoELayer(weights, top_k=TOP_K, shared=shared)(x, ids, factors)
    assert_close(found, moe(x, weights, ids, factors, shared=shared(x)))


def test_no_tokens_and_tokens_without_experts(call):
    weights, x, ids, factors = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K)
    assert layer(x[:0], ids[:0], factors[:0]).shape == (0, HIDDEN)
    nowhere = torch.full_like(ids, -1)
    assert not layer(x, nowhere, factors.fill_(float("nan"))).any()


def test_out_is_returned_and_written(call):
    weights, x, ids, factors = call
    layer, out = chord_jit.MoELayer(weights, top_k=TOP_K), torch.full_like(x, float("nan"))
    assert layer(x, ids, factors, out=out) is out
    assert torch.equal(out, layer(x, ids, factors))


def test_buffers_that_are_replaced_are_the_weights_from_then_on(call):
    weights, x, ids, factors = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K)
    other = random_layer(EXPERTS, HIDDEN, NEURONS)
    state = {"gate_up": other.gate_up.data, "down": other.down.data}
    layer.load_state_dict(state, assign=True)
    assert_close(layer(x, ids, factors), moe(x, other, ids, factors))
    assert layer.weights.gate_up.data is layer.gate_up
    layer.load_state_dict({"gate_up": weights.gate_up.data, "down": weights.down.data})
    assert_close(layer(x, ids, factors), moe(x, weights, ids, factors))


def test_another_storage_under_the_same_buffer_is_the_weights_from_then_on(call):
    """As hosts do that move weights to and fro between calls."""
    weights, x, ids, factors = call
    layer, other = chord_jit.MoELayer(weights, top_k=TOP_K), random_layer(EXPERTS, HIDDEN, NEURONS)
    layer(x, ids, factors)
    layer.gate_up.data, layer.down.data = other.gate_up.data, other.down.data
    for name in ("gate_up", "down"):
        assert getattr(layer.weights, name).place[1] == getattr(other, name).data.data_ptr()
    assert_close(layer(x, ids, factors), moe(x, other, ids, factors))


def test_a_gradient_is_refused_where_one_is_wanted(call):
    weights, x, ids, factors = call
    layer, wanting = chord_jit.MoELayer(weights, top_k=TOP_K), x.clone().requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(layer(wanting, ids, factors), layer(x, ids, factors))
    with pytest.raises(InputError, match="no gradient.*\n.*'x'"):
        layer(wanting, ids, factors)


def test_a_traced_call_gives_no_gradient_and_refuses_none(call, fresh_compiler):
    """A shared expert's parameters want gradients unless they are told not to, and exports are made outside of ``no_grad``."""
    weights, *given = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K, shared=torch.nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16))
    with torch.no_grad():
        right = layer(*given)
    compiled = torch.compile(lambda *given: layer(*given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), right)
    for strict in (False, True):
        assert torch.equal(torch.export.export(layer, tuple(given), strict=strict).module()(*given), right)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deepcopy", "pickle"])
def test_a_copy_reads_its_own_weights(call, copied):
    """Made after a call, which has read where the original's weights lie."""
    weights, *given = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K)
    for name in ("gate_up", "down"):
        assert getattr(layer.weights, name).place[1] == getattr(layer, name).data_ptr()
    other = copied(layer)
    for name in ("gate_up", "down"):
        assert getattr(other.weights, name).place[1] == getattr(other, name).data_ptr() != getattr(layer, name).data_ptr()
    assert torch.equal(other(*given), layer(*given))


def test_a_move_leaves_no_weights_behind(reference_backend, seed):
    layer = chord_jit.MoELayer(random_layer(EXPERTS, HIDDEN, NEURONS), top_k=TOP_K)
    held = [weakref.ref(layer.gate_up), weakref.ref(layer.down)]
    layer.to("meta")
    assert [reference() for reference in held] == [None, None] and layer.weights.gate_up.device.type == "meta"


def test_what_does_not_fit_is_refused(call):
    weights, x, ids, factors = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K)
    for given, error, rule in (
        ((x[:, :32].contiguous(), ids, factors), InputError, "hidden"),
        ((x.float(), ids, factors), InputTypeError, "BF16"),
        ((x, ids.float(), factors), InputTypeError, "topk_ids"),
        ((x, ids[:, :2].contiguous(), factors), InputError, "topk_ids"),
        ((x, ids, factors.bfloat16()), InputTypeError, "topk_weights"),
        ((x, ids, None), InputTypeError, "topk_weights"),
        ((x, ids, factors[:5]), InputError, "topk_weights"),
        ((x[::2], ids, factors), InputError, "contiguous"),
    ):
        with pytest.raises(error, match=rule):
            layer(*given)
    with pytest.raises(InputError, match="out"):
        layer(x, ids, factors, out=torch.empty(9, HIDDEN + 8, dtype=torch.bfloat16))


def test_weights_that_do_not_belong_together_are_refused(call):
    weights, *_ = call
    plain = random_layer(EXPERTS, HIDDEN, NEURONS, interleave=False)
    wider = random_layer(EXPERTS, HIDDEN, 2 * NEURONS)
    for given, error in (
        ((weights.gate_up, weights.down), InputTypeError),
        (MoEWeights(plain.gate_up, weights.down), InputError),
        (MoEWeights(weights.gate_up, wider.down), InputError),
    ):
        with pytest.raises(error):
            chord_jit.MoELayer(given, top_k=TOP_K)
    for options in ({"top_k": 0}, {"top_k": TOP_K, "expert_map": torch.zeros(4)}, {"top_k": TOP_K, "workspace_bytes": 0}):
        with pytest.raises((InputError, InputTypeError)):
            chord_jit.MoELayer(weights, **options)


def test_a_layer_compiles_whole(call, fresh_compiler):
    weights, x, ids, factors = call
    layer = chord_jit.MoELayer(weights, top_k=TOP_K)
    compiled = torch.compile(lambda *given: layer(*given) * 2, fullgraph=True, backend="aot_eager")
    for count in (9, 4, 7):
        given = x[:count], ids[:count], factors[:count]
        assert torch.equal(compiled(*given), layer(*given) * 2)
