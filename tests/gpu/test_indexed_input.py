"""Bad input is refused with what was asked, the rule, the values and the remedy, before anything is launched."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import align_blocks, counters, knobs
from chord_jit.errors import ChordError, InputError, InputTypeError, OverrideError
from tests.gpu.cases import Case
from tests.gpu.tensors import POISON, fenced_out, moved, strided, weight_of
from tests.gpu.workload import build

CASE = Case(8, 384, 192, 12, 2, 16)
KERNELS = [(CASE, None)]


def moved_weight(call):
    weight = call["weight"]
    return dict(weight=replace(weight, data=moved(weight.data)))


def rerouted(call, **change):
    return dict(routing=replace(call["routing"], **change))


def on_cpu(call):
    routing = call["routing"]
    return rerouted(call, **{name: getattr(routing, name).cpu() for name in ("sorted_ids", "expert_ids", "num_tokens_padded")})


def ones(call, dtype, *shape):
    return torch.ones(*shape, dtype=dtype, device=call["x"].device)


# name: the error, and the change to a good call.
BAD = {
    "x float16": (InputTypeError, lambda call: dict(x=call["x"].half())),
    "x float32": (InputTypeError, lambda call: dict(x=call["x"].float())),
    "x a list": (InputTypeError, lambda call: dict(x=[[1.0] * 192])),
    "x on the CPU": (InputError, lambda call: dict(x=call["x"].cpu())),
    "x 1-D": (ChordError, lambda call: dict(x=call["x"].view(-1))),
    "x 3-D": (ChordError, lambda call: dict(x=call["x"].view(1, 12, 192))),
    "x too narrow": (InputError, lambda call: dict(x=call["x"][:, :160].contiguous())),
    "x too wide": (InputError, lambda call: dict(x=torch.cat((call["x"], call["x"]), 1))),
    "x with rows apart": (InputError, lambda call: dict(x=strided(call["x"]))),
    "x transposed": (InputError, lambda call: dict(x=call["x"].T.contiguous().T)),
    "x off alignment": (InputError, lambda call: dict(x=moved(call["x"]))),
    "x of too few rows": (InputError, lambda call: dict(x=call["x"][:11])),
    "x of too many rows": (InputError, lambda call: dict(x=torch.cat((call["x"], call["x"])))),
    "weight unpacked": (InputTypeError, lambda call: dict(weight=call["weight"].data)),
    "weight of another layout": (InputError, lambda call: dict(weight=replace(call["weight"], layout_version=2))),
    "weight on the CPU": (InputError, lambda call: dict(weight=replace(call["weight"], data=call["weight"].data.cpu()))),
    "weight off alignment": (InputError, moved_weight),
    "weight of other experts": (InputError, lambda call: dict(weight=weight_of(4, 384, 192, False, call["x"].device))),
    "swiglu on a plain weight": (InputError, lambda call: dict(swiglu=True)),
    "routing a tuple": (InputTypeError, lambda call: dict(routing=(1, 2, 3))),
    "routing on the CPU": (InputError, on_cpu),
    "routing of down": (InputError, lambda call: rerouted(call, top_k=1)),
    "routing of more rows": (InputError, lambda call: rerouted(call, routed_rows=26)),
    "out float32": (ChordError, lambda call: dict(out=ones(call, torch.float32, 24, 384))),
    "out float16": (ChordError, lambda call: dict(out=ones(call, torch.float16, 24, 384))),
    "out on the CPU": (InputError, lambda call: dict(out=torch.empty(24, 384, dtype=torch.bfloat16))),
    "out too short": (InputError, lambda call: dict(out=ones(call, torch.bfloat16, 23, 384))),
    "out too narrow": (InputError, lambda call: dict(out=ones(call, torch.bfloat16, 24, 192))),
    "out 3-D": (InputError, lambda call: dict(out=ones(call, torch.bfloat16, 12, 2, 384))),
    "out with rows apart": (InputError, lambda call: dict(out=strided(ones(call, torch.bfloat16, 24, 384)))),
    "out off alignment": (InputError, lambda call: dict(out=moved(ones(call, torch.bfloat16, 24, 384)))),
    "out a list": (ChordError, lambda call: dict(out=[0])),
    "topk_weights bfloat16": (ChordError, lambda call: dict(topk_weights=ones(call, torch.bfloat16, 12, 2))),
    "topk_weights one per token": (InputError, lambda call: dict(topk_weights=ones(call, torch.float32, 12))),
    "topk_weights on the CPU": (InputError, lambda call: dict(topk_weights=torch.ones(12, 2))),
    "topk_weights apart": (InputError, lambda call: dict(topk_weights=ones(call, torch.float32, 12, 4)[:, ::2])),
    "topk_weights a list": (ChordError, lambda call: dict(topk_weights=[1.0] * 24)),
    "expected_rows negative": (ChordError, lambda call: dict(expected_rows=-1.0)),
    "expected_rows NaN": (ChordError, lambda call: dict(expected_rows=float("nan"))),
}


@pytest.fixture
def call(gpu, seed):
    work = build(CASE, gpu, seed)
    assert bool(work.fenced_call().isfinite().all())  # what the bad calls are changes of
    _, out = fenced_out(24, 384, gpu)
    return dict(x=work.x, weight=work.weight, routing=work.routing, out=out)


@pytest.mark.quick
@pytest.mark.parametrize("name", BAD)
def test_v43_bad_input_is_refused_before_a_launch(name, call, no_launch):
    error, change = BAD[name]
    before = counters()
    with pytest.raises(error) as caught:
        chord_jit.indexed(**{**call, **change(call)})
    assert caught.value.asked and caught.value.rule and caught.value.values and caught.value.remedy
    assert counters() == before
    assert bool((call["out"].view(torch.int16) == POISON).all())


ILLEGAL = [
    (dict(CHORD_W4A16_BM="12"), "BM must"),
    (dict(CHORD_W4A16_BN="48"), "BN must"),
    (dict(CHORD_W4A16_BK="100"), "BK must"),
    (dict(CHORD_W4A16_STAGES="1"), "STAGES must"),
    (dict(CHORD_W4A16_STAGES="16", CHORD_W4A16_BN="128", CHORD_W4A16_BK="512"), "shared memory"),
    (dict(CHORD_W4A16_CTAS="9"), "CTAS must"),
    (dict(CHORD_W4A16_CM="2"), "CM and CN"),
]


@pytest.mark.parametrize("overrides, rule", ILLEGAL, ids=[" ".join(overrides) for overrides, _ in ILLEGAL])
def test_v57_an_illegal_override_names_itself_and_launches_nothing(overrides, rule, call, no_launch):
    with knobs.scope(**overrides), pytest.raises(OverrideError, match=rule) as caught:
        chord_jit.indexed(**call)
    assert set(overrides) <= set(caught.value.values)
    assert bool((call["out"].view(torch.int16) == POISON).all())


def test_align_blocks_refuses_a_map_on_another_device(gpu):
    topk_ids = torch.zeros(2, 2, dtype=torch.int64, device=gpu)
    with pytest.raises(InputError, match="one device"):
        align_blocks(topk_ids, 8, 4, expert_map=torch.zeros(4, dtype=torch.int32))
