"""What goes wrong in the field, over the reference backend: right results, or errors that say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chord_jit.errors import ChordError
from chord_jit.rows import pipeline
from tests.gpu.tensors import moved
from tests.unit.layers import hostile

POISON = 7.0


@pytest.fixture(params=hostile.WAYS, autouse=True)
def way(request, reference_backend, monkeypatch, seed):
    monkeypatch.setattr(pipeline, "way_of", lambda weights, rows: request.param)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", hostile.TOKENS)
@pytest.mark.parametrize("routing", hostile.ROUTINGS)
def test_every_routing_is_right(routing, tokens, dtype):
    call = hostile.ROUTINGS[routing](hostile.draw(tokens, "cpu", ids=dtype))
    hostile.assert_right(call.result(), call.exact())


@pytest.mark.parametrize("routing", ["distinct", "dropped", "a map"])
def test_nan_stays_with_its_token(routing):
    call = hostile.ROUTINGS[routing](hostile.draw(9, "cpu"))
    clean, bad = call.result(), [0, 5, 8]
    x = call.x.clone()
    x[bad] = torch.tensor([float("nan"), float("inf"), float("nan")]).bfloat16()[:, None]
    got = replace(call, x=x).result()
    others = [token for token in range(9) if token not in bad]
    assert torch.equal(got[others], clean[others])
    busy = call.exact().any(1)
    assert bool(got[bad].isnan().all(1).eq(busy[bad]).all()), "a token without an expert stays zero"


def test_the_routing_weights_of_a_token_touch_no_other():
    call = hostile.draw(9, "cpu")
    clean, factors = call.result(), call.factors.clone()
    factors[4] = float("inf")
    got = replace(call, factors=factors).result()
    assert torch.equal(got[[0, 1, 2, 3, 5, 6, 7, 8]], clean[[0, 1, 2, 3, 5, 6, 7, 8]]) and not bool(got[4].isfinite().any())


def test_ids_and_routing_weights_may_lie_off_alignment():
    call = hostile.draw(9, "cpu", ids=torch.int32)
    got = replace(call, ids=moved(call.ids), factors=moved(call.factors)).result()
    assert torch.equal(got, call.result())


def test_no_tokens_and_no_experts_leave_the_shared_expert():
    shared = torch.nn.Linear(hostile.HIDDEN, hostile.HIDDEN).bfloat16().requires_grad_(False)
    call = replace(hostile.ROUTINGS["a map of none"](hostile.draw(9, "cpu")), shared=shared)
    assert torch.equal(call.result(), shared(call.x))
    none = replace(call, x=call.x[:0], ids=call.ids[:0], factors=call.factors[:0])
    assert none.result().shape == (0, hostile.HIDDEN)


@pytest.mark.parametrize("name", hostile.BAD)
def test_bad_input_is_refused(name):
    error, named, change = hostile.BAD[name]
    call = hostile.draw(9, "cpu")
    out = torch.full_like(call.x, POISON)
    given = dict(x=call.x, topk_ids=call.ids, topk_weights=call.factors, out=out)
    with pytest.raises(error, match=named) as caught:
        call.layer()(**{**given, **change(given)})
    assert caught.value.asked and caught.value.rule and caught.value.values and caught.value.remedy
    assert bool((out == POISON).all())


@pytest.mark.parametrize("name", hostile.bad_layers(hostile.draw(2, "cpu")))
def test_layers_that_do_not_fit_are_refused(name):
    with pytest.raises(ChordError) as caught:
        hostile.bad_layers(hostile.draw(9, "cpu"))[name]()
    assert caught.value.remedy


@pytest.mark.parametrize("assign", [False, True])
def test_a_second_load_over_a_live_layer(assign):
    """A load that does not fit changes nothing; one that fits is what the layer answers with from then on, and no other layer does."""
    call = hostile.draw(9, "cpu")
    kept, unfit = hostile.replaced_states(call)
    layer, other = call.layer(), kept.layer()
    first, second = (one(call.x, call.ids, call.factors) for one in (layer, other))
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(unfit, assign=assign)
    assert torch.equal(layer(call.x, call.ids, call.factors), first)
    layer.load_state_dict({name: tensor.clone() for name, tensor in other.state_dict().items()}, assign=assign)
    for one in (layer, other):
        assert torch.equal(one(call.x, call.ids, call.factors), second)
