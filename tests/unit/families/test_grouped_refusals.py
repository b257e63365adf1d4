"""Every rule of a grouped call, broken alone: the fast check sees it, and the refusal names it before anything is prepared."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from chord_jit.errors import CaptureError, ChordInternalError, InputError, InputTypeError
from chord_jit.families.grouped import FAMILY
from chord_jit.families.grouped_refusals import refuse_contiguous, refuse_masked
from chord_jit.formats.w4a16 import PackedW4A16
from tests.unit.families.fake_gpu import H200, OnGpu, bf16, machine, on_gpu, shifted, strided, weight_of
from tests.unit.families.fake_grouped import EXPERTS, LAYOUTS, ROWS, K, N, ask, family, good, tensor_of, zeros

__all__ = ["family", "machine"]

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
CONTIGUOUS = ("blocks", "offsets")


def elsewhere(tensor, index=1):
    return on_gpu(tensor.cpu().clone(), index)


def hosted(weight):
    return replace(weight, data=weight.data.cpu())


def other_mode(layout):
    return "contiguous" if layout == "masked" else "masked"


def long(*shape):
    return zeros(*shape, dtype=torch.int64)


# name: the error, words of the rule, words of the values, the change to a good call of a layout.
OPERANDS = {
    "weight unpacked": (InputTypeError, "must be a PackedW4A16", "type=OnGpu", lambda c, _: dict(weight=c["weight"].data)),
    "weight None": (InputTypeError, "must be a PackedW4A16", "type=NoneType", lambda c, _: dict(weight=None)),
    "layout version": (InputError, "layout version", "version=2", lambda c, _: dict(weight=replace(c["weight"], layout_version=2))),
    "other mode": (InputError, "packed for", "mode=", lambda c, name: dict(weight=replace(c["weight"], mode=other_mode(name)))),
    "x a list": (InputTypeError, "x must be a BF16 matrix", "list", lambda c, _: dict(x=[[1.0] * K])),
    "x float16": (InputTypeError, "x must be a BF16 matrix", "torch.float16", lambda c, _: dict(x=on_gpu(torch.zeros(ROWS, K).half()))),
    "x 1-D": (InputTypeError, "x must be a BF16 matrix", "[192]", lambda c, _: dict(x=bf16(K))),
    "x 4-D": (InputTypeError, "x must be a BF16 matrix", "[6, 2, 64, 192]", lambda c, _: dict(x=bf16(6, 2, 64, K))),
    "x on the CPU": (InputError, "one CUDA device", "x=cpu, weight=cuda:0", lambda c, _: dict(x=c["x"].cpu())),
    "x on another GPU": (InputError, "one CUDA device", "x=cuda:1, weight=cuda:0", lambda c, _: dict(x=elsewhere(c["x"]))),
    "weight on the CPU": (InputError, "one CUDA device", "x=cuda:0, weight=cpu", lambda c, _: dict(weight=hosted(c["weight"]))),
    "weight off alignment": (
        InputError, "weight must be 16-byte aligned", "address % 16=8",
        lambda c, _: dict(weight=PackedW4A16(shifted(c["weight"].data, 8), N, K, EXPERTS, False)),
    ),
    "x too narrow": (InputError, "as wide as the weight's K", "K=192", lambda c, _: dict(x=bf16(ROWS, 160))),
    "x with rows apart": (InputError, "TMA loads need", "strides=[384, 1]", lambda c, _: dict(x=strided(c["x"]))),
    "x off alignment": (InputError, "16-byte aligned as TMA loads need", "address % 16=2", lambda c, _: dict(x=shifted(c["x"]))),
    "swiglu": (InputError, "packed interleaved", "interleaved=False", lambda c, _: dict(swiglu=True)),
}  # fmt: skip

BLOCKS = {
    "m_indices a list": (InputTypeError, "m_indices must be a tensor", "type=list", lambda c: dict(m_indices=[0] * ROWS)),
    "m_indices int64": (InputTypeError, "m_indices must be int32", "torch.int64", lambda c: dict(m_indices=long(ROWS))),
    "m_indices too short": (InputError, "an expert for each row", "m_indices=640, rows=768", lambda c: dict(m_indices=zeros(640))),
    "m_indices too long": (InputError, "an expert for each row", "m_indices=769, rows=768", lambda c: dict(m_indices=zeros(769))),
    "m_indices 2-D": (InputError, "m_indices must be 1-D", "shape=[6, 128]", lambda c: dict(m_indices=zeros(6, 128))),
    "m_indices on the CPU": (InputError, "m_indices and x must lie", "=cpu", lambda c: dict(m_indices=c["m_indices"].cpu())),
    "m_indices elsewhere": (InputError, "m_indices and x must lie", "=cuda:1", lambda c: dict(m_indices=elsewhere(c["m_indices"]))),
    "m_indices apart": (InputError, "must be contiguous", "stride=(2,)", lambda c: dict(m_indices=on_gpu(zeros(2 * ROWS).cpu()[::2]))),
    "rows not padded": (InputError, "multiple of 128", "rows=700", lambda c: dict(x=bf16(700, K), m_indices=zeros(700))),
    "x 3-D": (InputTypeError, "BF16 matrix [M, K]", "[6, 128, 192]", lambda c: dict(x=bf16(6, 128, K))),
    "no layout": (InputTypeError, "exactly one of", "offsets given=False", lambda c: dict(m_indices=None)),
    "two layouts": (InputTypeError, "exactly one of", "offsets given=True", lambda c: dict(offsets=long(EXPERTS + 1))),
}
OFFSETS = {
    "offsets a list": (InputTypeError, "offsets must be a tensor", "type=list", lambda c: dict(offsets=[0] * 7)),
    "offsets int32": (InputTypeError, "offsets must be int64", "torch.int32", lambda c: dict(offsets=zeros(7))),
    "offsets of E": (InputError, "one more entry", "offsets=6, experts=6", lambda c: dict(offsets=long(6))),
    "offsets of more": (InputError, "one more entry", "offsets=8, experts=6", lambda c: dict(offsets=long(8))),
    "offsets 2-D": (InputError, "offsets must be 1-D", "shape=[7, 1]", lambda c: dict(offsets=long(7, 1))),
    "offsets on the CPU": (InputError, "offsets and x must lie", "=cpu", lambda c: dict(offsets=c["offsets"].cpu())),
    "offsets elsewhere": (InputError, "offsets and x must lie", "=cuda:1", lambda c: dict(offsets=elsewhere(c["offsets"]))),
    "x 3-D": (InputTypeError, "BF16 matrix [M, K]", "[6, 128, 192]", lambda c: dict(x=bf16(6, 128, K))),
}
MASKED = {
    "masked_m None": (InputTypeError, "masked_m must be a tensor", "type=NoneType", lambda c: dict(masked_m=None)),
    "masked_m int64": (InputTypeError, "masked_m must be int32", "torch.int64", lambda c: dict(masked_m=long(EXPERTS))),
    "masked_m too short": (InputError, "rows of each expert", "masked_m=5, experts=6", lambda c: dict(masked_m=zeros(5))),
    "masked_m 2-D": (InputError, "masked_m must be 1-D", "shape=[6, 1]", lambda c: dict(masked_m=zeros(6, 1))),
    "masked_m on the CPU": (InputError, "masked_m and x must lie", "=cpu", lambda c: dict(masked_m=c["masked_m"].cpu())),
    "masked_m elsewhere": (InputError, "masked_m and x must lie", "=cuda:1", lambda c: dict(masked_m=elsewhere(c["masked_m"]))),
    "rows not shared": (InputError, "equally many rows", "rows=767, experts=6", lambda c: dict(x=bf16(ROWS - 1, K))),
    "slices of other experts": (InputError, "one slice for each expert", "x=[3, 256, 192]", lambda c: dict(x=bf16(3, 256, K))),
    "expected_m zero": (InputError, "expected_m must be 1 or more", "expected_m=0", lambda c: dict(expected_m=0)),
    "expected_m negative": (InputError, "expected_m must be 1 or more", "expected_m=-3", lambda c: dict(expected_m=-3)),
    "expected_m past int32": (InputError, "fit in int32", "expected_m=2147483648", lambda c: dict(expected_m=2**31)),
    "expected_m a bool": (InputTypeError, "expected_m must be an int", "expected_m=True", lambda c: dict(expected_m=True)),
    "expected_m a float": (InputTypeError, "expected_m must be an int", "expected_m=8.0", lambda c: dict(expected_m=8.0)),
    "expected_m None": (InputTypeError, "expected_m must be an int", "expected_m=None", lambda c: dict(expected_m=None)),
    "expected_m numpy": (InputTypeError, "expected_m must be an int", "8", lambda c: dict(expected_m=np.int64(8))),
    "expected_m a tensor": (InputTypeError, "expected_m must be an int", "tensor(8)", lambda c: dict(expected_m=torch.tensor(8))),
}
OWN = [
    pytest.param(layout, *case, id=f"{layout}-{name}")
    for layout, cases in zip(LAYOUTS, (BLOCKS, OFFSETS, MASKED), strict=True) for name, case in cases.items()
]  # fmt: skip


def refused(family, layout, call, error, rule, values):
    with pytest.raises(error) as caught:
        ask(family, layout, call)
    shown = str(caught.value).replace("torch.Size(", "")
    assert rule in caught.value.rule and values in shown, caught.value
    assert caught.value.asked and caught.value.remedy
    assert family.asked == family.prepared == family.launches == []


@every_layout
@pytest.mark.parametrize("error, rule, values, change", OPERANDS.values(), ids=OPERANDS)
def test_v43_v44_a_broken_rule_of_activations_and_weight_is_named(family, layout, error, rule, values, change):
    call = good(layout)
    refused(family, layout, {**call, **change(call, layout)}, error, rule, values)


@pytest.mark.parametrize("layout, error, rule, values, change", OWN)
def test_v43_a_broken_rule_of_the_layout_is_named(family, layout, error, rule, values, change):
    call = good(layout)
    refused(family, layout, {**call, **change(call)}, error, rule, values)


@every_layout
def test_a_weight_packed_for_this_call_is_taken(family, layout):
    call = good(layout)
    for mode in (None, "masked" if layout == "masked" else "contiguous"):
        ask(family, layout, {**call, "weight": replace(call["weight"], mode=mode)})
    assert len(family.launches) == 2 and len(family.prepared) == 1


@pytest.mark.parametrize("change, remedy", [
    (strided, "x.contiguous()"), (shifted, "x.clone()"), (lambda x: bf16(ROWS, 160), "activations of this layer"),
], ids=["apart", "off alignment", "narrow"])  # fmt: skip
@every_layout
def test_the_remedy_is_the_one_that_helps(family, layout, change, remedy):
    call = good(layout)
    with pytest.raises(InputError) as caught:
        ask(family, layout, {**call, "x": change(call["x"])})
    assert remedy in caught.value.remedy


class Tall(OnGpu):
    """Activations of more rows than int32 can count, without their bytes."""

    def is_contiguous(self) -> bool:
        return True


@pytest.mark.parametrize("layout", ["offsets", "masked"])
def test_v46_rows_past_int32_are_refused(family, layout):
    tall = torch.empty(1, K, dtype=torch.bfloat16).expand(6 * 2**29, K).as_subclass(Tall)
    refused(family, layout, {**good(layout), "x": tall, "out": None}, InputError, "rows of x must fit in int32", f"rows={6 * 2**29}")


def test_refusing_a_good_call_is_our_fault(machine):
    for layout in LAYOUTS:
        call = good(layout)
        with pytest.raises(ChordInternalError, match="must break a rule"):
            if layout == "masked":
                refuse_masked(call["x"], call["weight"], call["masked_m"], call["expected_m"], False)
            else:
                refuse_contiguous(call["x"], call["weight"], call["m_indices"], call["offsets"], False)


OUTS = {
    "a list": (lambda c: [0.0], "dtype=list"),
    "float16": (lambda c: on_gpu(torch.zeros(ROWS, N).half()), "torch.float16"),
    "too short": (lambda c: bf16(ROWS - 1, N), "wanted=[768, 256]"),
    "too wide": (lambda c: bf16(ROWS, N + 8), "[768, 264]"),
    "sliced": (lambda c: bf16(EXPERTS, ROWS // EXPERTS, N), "[6, 128, 256]"),
    "rows apart": (lambda c: strided(c["out"]), "wanted=[768, 256]"),
    "off alignment": (lambda c: shifted(c["out"], 4), "address % 16=8"),
    "on the CPU": (lambda c: c["out"].cpu(), "device=cpu"),
    "on another GPU": (lambda c: elsewhere(c["out"]), "device=cuda:1"),
}


@every_layout
@pytest.mark.parametrize("make, shown", OUTS.values(), ids=OUTS)
def test_an_out_that_does_not_fit_is_refused(family, layout, make, shown):
    call = good(layout)
    refused(family, layout, {**call, "out": make(call)}, InputError, "out must be contiguous, 16-byte aligned BF16", shown)


# -- values -------------------------------------------------------------------------------------------------------------
BROKEN = {
    "blocks": [
        (slice(0, 1), EXPERTS, "an expert of the weight"), (slice(5, 6), -2, "an expert of the weight"),
        (slice(3, 4), 1, "rows of one expert"), (slice(7, 8), -1, "valid rows first"), (slice(120, 128), -1, "end of an expert's rows"),
        (slice(128, 256), 1, "must be adjacent"),
    ],
    "offsets": [(slice(0, 1), 1, "begin at 0"), (slice(2, 3), 9, "must not decrease"), (slice(6, 7), ROWS + 1, "must not pass the rows")],
    "masked": [(slice(5, 6), 129, "0 .. max_m"), (slice(0, 1), -1, "0 .. max_m")],
}  # fmt: skip
VALUES = [pytest.param(layout, *case, id=f"{layout}-{case[2]}-{case[1]}") for layout, cases in BROKEN.items() for case in cases]


@pytest.mark.parametrize("layout, where, value, rule", VALUES)
def test_a_checked_call_refuses_values_that_an_unchecked_one_trusts(family, layout, where, value, rule):
    call = good(layout)
    ask(family, layout, {**call, "checked": True})
    tensor_of(layout, call).cpu()[where] = value
    ask(family, layout, call)
    with pytest.raises(InputError) as caught:
        ask(family, layout, {**call, "checked": True})
    assert rule in caught.value.rule and len(family.launches) == 2


@every_layout
def test_a_checked_call_is_refused_under_capture(family, monkeypatch, layout):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    ask(family, layout, good(layout))
    with pytest.raises(CaptureError, match="checked mode synchronises"):
        ask(family, layout, {**good(layout), "checked": True})
    assert len(family.launches) == 1


# -- hints and problems -------------------------------------------------------------------------------------------------
BAD_HINTS = {
    "text": (InputTypeError, "8"), "bool": (InputTypeError, True), "tensor": (InputTypeError, torch.tensor(8.0)),
    "NaN": (InputError, math.nan), "negative": (InputError, -0.5), "past int32": (InputError, 2**31),
}  # fmt: skip


@pytest.mark.parametrize("layout", CONTIGUOUS)
@pytest.mark.parametrize("error, hint", BAD_HINTS.values(), ids=BAD_HINTS)
def test_a_hint_that_is_no_count_is_refused(family, layout, error, hint):
    ask(family, layout, {**good(layout), "expected_rows": 1.0})  # True == 1.0: what is remembered must not let it pass
    for request in (
        lambda: ask(family, layout, {**good(layout), "expected_rows": hint}),
        lambda: FAMILY.problem(H200, EXPERTS, N, K, hint, layout=layout),
    ):
        with pytest.raises(error, match="expected_rows must") as caught:
            request()
        assert "expected_rows" in caught.value.values and caught.value.remedy
    assert len(family.launches) == 1


@pytest.mark.parametrize("layout", ["indexed", "", None, "contiguous"])
def test_an_unknown_layout_is_refused(layout):
    with pytest.raises(InputError, match="one of blocks, offsets, masked"):
        FAMILY.problem(H200, EXPERTS, N, K, 8, layout=layout)


@pytest.mark.parametrize("experts, n, k", [(0, N, K), (8, 252, K), (8, N, 200)])
def test_v51_a_shape_that_no_padding_serves_is_refused(experts, n, k):
    with pytest.raises(InputError, match="N a positive multiple of 8, K a positive multiple of 32") as caught:
        FAMILY.problem(H200, experts, n, k, 1.0, layout="masked")
    assert caught.value.asked == "choose a kernel for grouped W4A16"


def test_one_packed_weight_serves_every_layout(family):
    weight = weight_of(EXPERTS, N, K)
    for layout in LAYOUTS:
        ask(family, layout, {**good(layout), "weight": weight})
    assert {told["weight"] for told in family.launches} == {weight.data.data_ptr()}
