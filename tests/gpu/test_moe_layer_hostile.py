"""What goes wrong in the field, over the kernels: right results beside NaN and poison, or errors before anything is launched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chord_jit import counters
from chord_jit.errors import ChordError
from chord_jit.rows import pipeline
from tests.gpu.launches import capture
from tests.gpu.tensors import POISON, bits, fenced, fenced_out, fenced_result
from tests.unit.layers import hostile

#: Bytes that are made NaN and given back before a call, so that whatever it allocates begins as NaN.
SPOILED = 64 << 20


@pytest.fixture(params=hostile.WAYS, autouse=True)
def way(request, monkeypatch, seed):
    monkeypatch.setattr(pipeline, "way_of", lambda weights, rows: request.param)


def spoil(where: torch.device) -> None:
    """Leaves NaN in torch's free memory: in blocks of every size that a small call asks for, and in large ones."""
    sizes = [1 << power for power in range(9, 24)] * 4 + [SPOILED]
    blocks = [torch.full((size // 2,), float("nan"), dtype=torch.bfloat16, device=where) for size in sizes]
    del blocks


def within(tensor: torch.Tensor, around: float) -> torch.Tensor:
    """An equal tensor in the middle of ``around``, off alignment."""
    buffer = torch.full((tensor.numel() + 129,), around, dtype=tensor.dtype, device=tensor.device)
    return buffer[65 : 65 + tensor.numel()].view(tensor.shape).copy_(tensor)


def careful(call: hostile.Call) -> torch.Tensor:
    """The result in a poisoned, fenced ``out``: x between NaN, ids between valid ones, NaN in all free memory."""
    call = replace(call, x=fenced(call.x), ids=within(call.ids, 1), factors=within(call.factors, float("nan")))
    owned = torch.ones(len(call.x), dtype=torch.bool, device=call.x.device)
    spoil(call.x.device)
    return fenced_result(lambda out: call.result(out=out), hostile.HIDDEN, owned)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", hostile.TOKENS)
@pytest.mark.parametrize("routing", hostile.ROUTINGS)
def test_every_routing_is_right_and_the_same_twice(gpu, routing, tokens, dtype):
    call = hostile.ROUTINGS[routing](hostile.draw(tokens, gpu, ids=dtype))
    result = careful(call)
    hostile.assert_right(result, call.exact())
    assert torch.equal(bits(call.result()), bits(result)), "NaN in padding, around tensors or in free memory changed bits"


@pytest.mark.parametrize("tokens", [9, 131])
@pytest.mark.parametrize("routing", ["distinct", "dropped", "all on one expert", "a map"])
def test_nan_stays_with_its_token(gpu, routing, tokens):
    call = hostile.ROUTINGS[routing](hostile.draw(tokens, gpu))
    clean, bad = call.result(), torch.zeros(tokens, dtype=torch.bool, device=gpu)
    bad[[0, 5, tokens - 1]] = True
    x = call.x.clone()
    x[0], x[5], x[-1] = float("nan"), float("inf"), float("nan")
    got = careful(replace(call, x=x))
    assert torch.equal(bits(got[~bad]), bits(clean[~bad]))
    busy = call.exact().any(1)
    assert bool((~got[bad].isfinite()).all(1).eq(busy[bad]).all()), "a token without an expert stays zero"


def test_the_routing_weights_of_a_token_touch_no_other(gpu):
    call = hostile.draw(9, gpu)
    clean, factors = call.result(), call.factors.clone()
    factors[4] = float("inf")
    got = careful(replace(call, factors=factors))
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(bits(got[others]), bits(clean[others])) and not bool(got[4].isfinite().any())


def test_no_experts_leave_the_shared_expert(gpu):
    shared = torch.nn.Linear(hostile.HIDDEN, hostile.HIDDEN, device=gpu).bfloat16().requires_grad_(False)
    call = hostile.ROUTINGS["a map of none"](hostile.draw(9, gpu))
    assert torch.equal(bits(careful(replace(call, shared=shared))), bits(shared(call.x)))


def test_no_tokens_launch_nothing(gpu, no_launch):
    call, before = hostile.draw(9, gpu), counters()
    none = replace(call, x=call.x[:0], ids=call.ids[:0], factors=call.factors[:0])
    assert none.result().shape == (0, hostile.HIDDEN)
    assert counters() == before


@pytest.mark.quick
@pytest.mark.parametrize("name", hostile.BAD)
def test_bad_input_is_refused_before_a_launch(gpu, name, no_launch):
    error, named, change = hostile.BAD[name]
    call, (_, out) = hostile.draw(9, gpu), fenced_out(9, hostile.HIDDEN, gpu)
    given = dict(x=call.x, topk_ids=call.ids, topk_weights=call.factors, out=out)
    before = counters()
    with pytest.raises(error, match=named) as caught:
        call.layer()(**{**given, **change(given)})
    assert caught.value.asked and caught.value.rule and caught.value.values and caught.value.remedy
    assert counters() == before and bool((bits(out) == POISON).all())


@pytest.mark.parametrize("name", hostile.bad_layers(hostile.draw(2, "cpu")))
def test_layers_that_do_not_fit_are_refused(gpu, name, no_launch):
    with pytest.raises(ChordError) as caught:
        hostile.bad_layers(hostile.draw(9, gpu))[name]()
    assert caught.value.remedy


def test_activations_of_another_device_than_the_weights(gpu, no_launch):
    call, there = hostile.draw(9, gpu), hostile.draw(9, "cpu")
    with pytest.raises(ChordError, match="device of the weights"):
        replace(call, weights=there.weights).result()


def test_a_graph_follows_a_hostile_routing(gpu):
    """Captured over one routing and replayed over every other of its size, in its own buffers, beside NaN."""
    call = hostile.draw(9, gpu)
    layer, out = call.layer(), torch.empty_like(call.x)
    graph = capture(lambda: layer(call.x, call.ids, call.factors, out=out))
    for name in ("dropped", "all on one expert", "out of range", "an expert twice", "nobody's", "distinct"):
        fresh = hostile.ROUTINGS[name](hostile.draw(9, gpu))
        for mine, theirs in ((call.x, fresh.x), (call.ids, fresh.ids), (call.factors, fresh.factors)):
            mine.copy_(theirs)
        bits(out).fill_(POISON)
        graph.replay()
        assert torch.equal(bits(out), bits(call.result())), name
        hostile.assert_right(out, call.exact())


def test_a_second_load_over_a_live_layer(gpu):
    """What is copied over a layer's weights is what its next call and its captured graph answer with; no other layer changes."""
    call = hostile.draw(9, gpu)
    kept, unfit = hostile.replaced_states(call)
    layer, other, out = call.layer(), kept.layer(), torch.empty_like(call.x)
    graph = capture(lambda: layer(call.x, call.ids, call.factors, out=out))
    first, second = (one(call.x, call.ids, call.factors) for one in (layer, other))
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(unfit)
    graph.replay()
    assert torch.equal(bits(out), bits(first))
    layer.load_state_dict(other.state_dict())
    graph.replay()
    for result in (out, layer(call.x, call.ids, call.factors), other(call.x, call.ids, call.factors)):
        assert torch.equal(bits(result), bits(second))


def test_a_load_by_assignment_over_a_live_layer(gpu):
    call = hostile.draw(9, gpu)
    kept, _ = hostile.replaced_states(call)
    layer = call.layer()
    before = layer(call.x, call.ids, call.factors)
    layer.load_state_dict({name: tensor.clone() for name, tensor in kept.layer().state_dict().items()}, assign=True)
    after = layer(call.x, call.ids, call.factors)
    assert torch.equal(bits(after), bits(kept.result())) and not torch.equal(after, before)
