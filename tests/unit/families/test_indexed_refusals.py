"""Every rule of a call, broken alone: the fast check sees it, and the refusal names it before anything is loaded."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from chord_jit import device
from chord_jit.errors import ChordInternalError, InputError, InputTypeError
from chord_jit.families.indexed import FAMILY, IndexedFamily, _fits
from chord_jit.families.indexed_refusals import refuse_call
from chord_jit.formats.w4a16 import PackedW4A16
from tests.unit.families.fake_gpu import bf16, machine, on_gpu, routing_of, shifted, strided, weight_of

__all__ = ["machine"]

TOKENS, TOP_K, EXPERTS, N, K = 6, 3, 8, 256, 192
ROWS = TOKENS * TOP_K


@pytest.fixture
def call() -> dict:
    return dict(
        x=bf16(TOKENS, K), weight=weight_of(EXPERTS, N, K), routing=routing_of(TOKENS, TOP_K, 16, EXPERTS), swiglu=False,
        topk_weights=None, expected_rows=None, checked=False, out=bf16(ROWS, N),
    )  # fmt: skip


def rerouted(call, index):
    routing = call["routing"]
    names = ("sorted_ids", "expert_ids", "num_tokens_padded")
    return replace(routing, **{name: on_gpu(getattr(routing, name).cpu(), index) for name in names})


def hosted(call):
    routing = call["routing"]
    return replace(routing, **{name: getattr(routing, name).cpu() for name in ("sorted_ids", "expert_ids", "num_tokens_padded")})


def host_weight(call):
    return replace(call["weight"], data=call["weight"].data.cpu())


def reserved(call, mode):
    return replace(call["weight"], mode=mode)


def misaligned(call):
    return PackedW4A16(shifted(call["weight"].data, 8), N, K, EXPERTS, False)


# name: the error, words of the rule, words of the values, the change to a good call.
REFUSED = {
    "weight unpacked": (InputTypeError, "must be a PackedW4A16", "type=OnGpu", lambda c: dict(weight=c["weight"].data)),
    "weight None": (InputTypeError, "must be a PackedW4A16", "type=NoneType", lambda c: dict(weight=None)),
    "layout version": (InputError, "layout version", "layout_version=2", lambda c: dict(weight=replace(c["weight"], layout_version=2))),
    "packed contiguous": (InputError, "for contiguous(...) alone", "call=indexed", lambda c: dict(weight=reserved(c, "contiguous"))),
    "packed masked": (InputError, "for masked(...) alone", "mode=masked", lambda c: dict(weight=reserved(c, "masked"))),
    "x a list": (InputTypeError, "x must be a BF16 matrix", "list", lambda c: dict(x=[[1.0] * K])),
    "x float16": (InputTypeError, "x must be a BF16 matrix", "torch.float16", lambda c: dict(x=on_gpu(torch.rand(TOKENS, K).half()))),
    "x 1-D": (InputTypeError, "x must be a BF16 matrix", "[192]", lambda c: dict(x=bf16(K))),
    "x 3-D": (InputTypeError, "x must be a BF16 matrix", "[1, 6, 192]", lambda c: dict(x=bf16(1, TOKENS, K))),
    "x on the CPU": (InputError, "one CUDA device", "x=cpu, weight=cuda:0", lambda c: dict(x=c["x"].cpu())),
    "x on another GPU": (InputError, "one CUDA device", "x=cuda:1, weight=cuda:0", lambda c: dict(x=on_gpu(c["x"].cpu().clone(), 1))),
    "weight on the CPU": (InputError, "one CUDA device", "x=cuda:0, weight=cpu", lambda c: dict(weight=host_weight(c))),
    "weight off alignment": (InputError, "packed weight must be 16-byte aligned", "address % 16=8", lambda c: dict(weight=misaligned(c))),
    "x too narrow": (InputError, "as wide as the weight's K", "K=192", lambda c: dict(x=bf16(TOKENS, 160))),
    "x too wide": (InputError, "as wide as the weight's K", "x=[6, 384]", lambda c: dict(x=bf16(TOKENS, 2 * K))),
    "x with rows apart": (InputError, "x must be contiguous", "strides=[384, 1]", lambda c: dict(x=strided(c["x"]))),
    "x off alignment": (InputError, "x must be contiguous, 16-byte aligned", "address % 16=2", lambda c: dict(x=shifted(c["x"]))),
    "routing a tuple": (InputTypeError, "must be an IndexedRouting", "type=tuple", lambda c: dict(routing=(1, 2, 3))),
    "x of fewer rows": (InputError, "activation rows x top_k", "routed_rows=18, rows=5", lambda c: dict(x=bf16(5, K))),
    "x of more rows": (InputError, "activation rows x top_k", "routed_rows=18, rows=7", lambda c: dict(x=bf16(7, K))),
    "routing of down": (InputError, "activation rows x top_k", "top_k=1", lambda c: dict(routing=c["routing"].for_down())),
    "experts": (InputError, "count the same experts", "routing=9, weight=8", lambda c: dict(routing=routing_of(TOKENS, TOP_K, 16, 9))),
    "routing on another GPU": (InputError, "one device", "routing=cuda:1, activations=cuda:0", lambda c: dict(routing=rerouted(c, 1))),
    "routing on the CPU": (InputError, "one device", "routing=cpu", lambda c: dict(routing=hosted(c))),
    "swiglu": (InputError, "packed interleaved", "interleaved=False", lambda c: dict(swiglu=True)),
    "weights a list": (InputError, "topk_weights must be", "dtype=list", lambda c: dict(topk_weights=[1.0] * ROWS)),
    "weights bf16": (InputError, "topk_weights must be", "dtype=torch.bfloat16", lambda c: dict(topk_weights=bf16(TOKENS, TOP_K))),
    "weights too few": (InputError, "one per routed row", "routed_rows=18", lambda c: dict(topk_weights=on_gpu(torch.rand(TOKENS)))),
    "weights apart": (InputError, "must be contiguous FP32", "[6, 3]", lambda c: dict(topk_weights=strided(torch.rand(TOKENS, TOP_K)))),
    "weights on the CPU": (InputError, "on the device of x", "device=cpu", lambda c: dict(topk_weights=torch.rand(TOKENS, TOP_K))),
    "weights elsewhere": (InputError, "on the device of x", "device=cuda:1", lambda c: dict(topk_weights=on_gpu(torch.rand(ROWS), 1))),
}  # fmt: skip
ASKED = ("x", "weight", "routing", "swiglu", "topk_weights")


@pytest.mark.parametrize("error, rule, values, change", REFUSED.values(), ids=REFUSED)
def test_v43_v44_a_broken_rule_is_named(machine, call, error, rule, values, change):
    bad = {**call, **change(call)}
    assert not _fits(*(bad[name] for name in ASKED))
    with pytest.raises(error) as caught:
        IndexedFamily().run(**bad)
    assert rule in caught.value.rule and values in str(caught.value).replace("torch.Size(", ""), caught.value
    assert caught.value.asked and caught.value.remedy
    assert machine.loads == machine.driver.launches == []


def test_a_good_call_fits_and_refusing_it_is_our_fault(call):
    good = [call[name] for name in ASKED]
    assert _fits(*good)
    with pytest.raises(ChordInternalError, match="must break a rule"):
        refuse_call(*good)


OUTS = {
    "a list": (lambda c: [0.0], "dtype=list"),
    "float16": (lambda c: on_gpu(torch.zeros(ROWS, N).half()), "torch.float16"),
    "too short": (lambda c: bf16(ROWS - 1, N), "wanted=[18, 256]"),
    "too wide": (lambda c: bf16(ROWS, N + 8), "[18, 264]"),
    "flat": (lambda c: bf16(ROWS * N), "[4608]"),
    "rows apart": (lambda c: strided(c["out"]), "wanted=[18, 256]"),
    "off alignment": (lambda c: shifted(c["out"], 4), "address % 16=8"),
    "on the CPU": (lambda c: torch.zeros(ROWS, N).bfloat16(), "device=cpu"),
    "on another GPU": (lambda c: on_gpu(c["out"].cpu().clone(), 1), "device=cuda:1"),
}


@pytest.mark.parametrize("make, shown", OUTS.values(), ids=OUTS)
def test_an_out_that_does_not_fit_is_refused(machine, call, make, shown):
    with pytest.raises(InputError, match="out must be contiguous, 16-byte aligned BF16") as caught:
        IndexedFamily().run(**{**call, "out": make(call)})
    assert shown in str(caught.value) and machine.loads == machine.driver.launches == []


def test_a_checked_call_refuses_routing_that_an_unchecked_one_trusts(machine, call):
    call["routing"].sorted_ids.zero_()
    family = IndexedFamily()
    family.run(**call)
    with pytest.raises(InputError, match="a valid id must appear once"):
        family.run(**{**call, "checked": True})
    assert len(machine.driver.launches) == 1


# -- hints and shapes ---------------------------------------------------------------------------------------------------
BAD_HINTS = {
    "text": (InputTypeError, "8"), "bool": (InputTypeError, True), "list": (InputTypeError, [8]),
    "float32": (InputTypeError, np.float32(8)), "tensor": (InputTypeError, torch.tensor(8.0)),
    "NaN": (InputError, math.nan), "infinite": (InputError, math.inf),
    "negative": (InputError, -0.5), "past int32": (InputError, 2**31),
}  # fmt: skip


@pytest.mark.parametrize("error, hint", BAD_HINTS.values(), ids=BAD_HINTS)
def test_a_hint_that_is_no_count_is_refused(machine, call, error, hint):
    family = IndexedFamily()
    family.run(**{**call, "expected_rows": 1.0})  # True == 1.0: what is remembered must not let it pass
    for ask in (lambda: family.run(**{**call, "expected_rows": hint}), lambda: FAMILY.problem(device.target("sm_90a"), 8, N, K, hint)):
        with pytest.raises(error, match="expected_rows must") as caught:
            ask()
        assert "expected_rows" in caught.value.values and caught.value.remedy
    assert len(machine.driver.launches) == 1


@pytest.mark.parametrize("hint", [0, 0.02, 8, 3.5, np.float64(2.5), 2**31 - 1])
def test_a_count_is_taken(machine, call, hint):
    IndexedFamily().run(**{**call, "expected_rows": hint})
    assert len(machine.driver.launches) == 1


@pytest.mark.parametrize("experts, n, k", [(0, N, K), (8, 252, K), (8, 0, K), (8, N, 16), (8, N, 200), (8, N, 0), (8, -8, K)])
def test_v51_a_shape_that_no_padding_serves_is_refused(experts, n, k):
    with pytest.raises(InputError, match="N a positive multiple of 8, K a positive multiple of 32") as caught:
        FAMILY.problem(device.target("sm_90a"), experts, n, k, 1.0)
    assert caught.value.values == {"experts": experts, "N": n, "K": k}
