"""A grouped call from its tensors to the bound launch: what is passed, what is remembered, what is asked again."""

import pytest
import torch

from chord_jit import device, knobs
from chord_jit.errors import CaptureError, InputError
from chord_jit.families import grouped
from tests.unit.families.fake_gpu import H200, bf16, machine, on_gpu, weight_of
from tests.unit.families.fake_grouped import CHOSEN, EXPERTS, LAYOUTS, MAX_M, ROWS, K, N, ask, family, good, tensor_of, zeros

__all__ = ["family", "machine"]

every_layout = pytest.mark.parametrize("layout", LAYOUTS)


# -- what the launch is told --------------------------------------------------------------------------------------------
@every_layout
def test_every_argument_is_the_tensors_own(family, layout):
    call = good(layout)
    assert ask(family, layout, call) is call["out"]
    (told,) = family.launches
    x = told.pop("x")
    assert x.data_ptr() == call["x"].data_ptr() and x.shape == (ROWS, K)
    assert told == {
        "index": 0, "weight": call["weight"].data.data_ptr(), "out": call["out"].data_ptr(), "layout": tensor_of(layout, call).data_ptr(),
        "rows": ROWS, "segments": ROWS // 128 if layout == "blocks" else EXPERTS, "max_m": MAX_M if layout == "masked" else 0,
        "current": 0,
    }  # fmt: skip


def test_sliced_activations_are_the_flat_ones(family):
    call = good("masked")
    ask(family, "masked", {**call, "x": on_gpu(call["x"].cpu().view(EXPERTS, MAX_M, K))})
    (told,) = family.launches
    assert told["x"].shape == (ROWS, K) and told["x"].data_ptr() == call["x"].data_ptr() and told["rows"] == ROWS


@pytest.mark.parametrize("rows, segments", [(1, 6), (129, 6), (1025, 6)])
def test_rows_without_padding_may_be_any_number(family, rows, segments):
    ask(family, "offsets", {**good("offsets"), "x": bf16(rows, K), "out": bf16(rows, N)})
    assert [(told["rows"], told["segments"]) for told in family.launches] == [(rows, segments)]


@pytest.mark.parametrize("stride", [1, K + 2, 2 * K])
def test_v44_one_row_may_have_any_stride(family, stride):
    x = on_gpu(torch.zeros(2 * K, dtype=torch.bfloat16).as_strided((1, K), (stride, 1)))
    ask(family, "offsets", {**good("offsets"), "x": x, "out": bf16(1, N)})
    assert [told["x"].data_ptr() for told in family.launches] == [x.data_ptr()]


@every_layout
@pytest.mark.parametrize("index, current", [(0, 1), (1, 0), (1, 1)])
def test_v31_the_target_is_the_one_of_the_tensors_device(machine, family, monkeypatch, layout, index, current):
    """Of two unlike GPUs neither the first nor the current one decides."""
    archs, machine.current = ("sm_100a", "sm_90a"), current
    monkeypatch.setattr(device, "facts", lambda index: device.target(archs[index]))
    ask(family, layout, good(layout, index))
    assert [(problem.facts.arch, at) for problem, _, at in family.prepared] == [(archs[index], index)]


@every_layout
def test_swiglu_halves_the_output(family, layout):
    fused = {**good(layout), "weight": weight_of(EXPERTS, N, K, interleaved=True), "swiglu": True, "out": bf16(ROWS, N // 2)}
    ask(family, layout, fused)
    assert [(asked.interleaved, asked.swiglu) for asked in family.asked] == [(True, True)]
    with pytest.raises(InputError, match=r"wanted=\[768, 128\]"):
        ask(family, layout, {**fused, "out": bf16(ROWS, N)})


@every_layout
@pytest.mark.parametrize("current, guards", [(1, []), (0, [1])])
def test_v42_the_launch_happens_on_the_tensors_device(machine, family, layout, current, guards):
    machine.current = current
    for _ in range(2):
        machine.guards.clear()
        ask(family, layout, good(layout, index=1))
    assert machine.guards == guards and machine.current == current
    assert [(told["index"], told["current"]) for told in family.launches] == [(1, 1), (1, 1)]
    assert [index for *_, index in family.prepared] == [1]


# -- what is asked for --------------------------------------------------------------------------------------------------
@every_layout
def test_the_problem_is_the_calls(family, layout):
    ask(family, layout, good(layout))
    ((asked, schedule, index),) = family.prepared
    assert asked == family.problem(H200, EXPERTS, N, K, 8 if layout == "masked" else ROWS / EXPERTS, layout=layout)
    assert asked.expected_rows == (8 if layout == "masked" else ROWS / EXPERTS)
    assert (schedule, index, asked.dequant) == (CHOSEN, 0, "subnormal")


@pytest.mark.parametrize("layout", ["blocks", "offsets"])
def test_a_hint_replaces_the_average(family, layout):
    ask(family, layout, {**good(layout), "expected_rows": 39.5})
    assert [asked.expected_rows for asked in family.asked] == [64]


# -- what is remembered -------------------------------------------------------------------------------------------------
@every_layout
def test_a_warm_call_neither_chooses_nor_prepares(family, layout):
    first, second = good(layout), good(layout)
    for call in (first, second, second):
        ask(family, layout, call)
    assert len(family.asked) == len(family.prepared) == 1
    assert [told["out"] for told in family.launches] == [call["out"].data_ptr() for call in (first, second, second)]


def of_rows(rows, layout):
    call = dict(x=bf16(rows, K), out=bf16(rows, N))
    return {**call, "m_indices": zeros(rows)} if layout == "blocks" else call


CHANGES = {
    "rows": lambda layout: of_rows(1536, layout),
    "N": lambda layout: dict(weight=weight_of(EXPERTS, 128, K), out=bf16(ROWS, 128)),
    "K": lambda layout: dict(weight=weight_of(EXPERTS, N, 320), x=bf16(ROWS, 320)),
    "interleaved": lambda layout: dict(weight=weight_of(EXPERTS, N, K, interleaved=True)),
    "hint": lambda layout: {"expected_m" if layout == "masked" else "expected_rows": 300},
}


@every_layout
@pytest.mark.parametrize("change", CHANGES)
def test_a_call_that_may_want_another_schedule_chooses_anew(family, layout, change):
    calls = (good(layout), {**good(layout), **CHANGES[change](layout)})
    for call in (*calls, *calls):
        ask(family, layout, call)
    distinct = 1 if (layout, change) == ("masked", "rows") else 2  # expected_m alone steers a masked call
    assert len(family.asked) == len(set(family.asked)) == distinct and len(family.launches) == 4


def test_layouts_do_not_share_a_plan(family):
    for layout in LAYOUTS:
        call = good(layout)
        ask(family, layout, {**call, **({"expected_m": ROWS // EXPERTS} if layout == "masked" else {})})
    assert [asked.layout for asked in family.asked] == list(LAYOUTS)


def test_row_counts_share_a_plan_under_one_hint(family):
    for rows in range(1, 30):
        ask(family, "offsets", {**good("offsets"), **of_rows(rows, "offsets"), "expected_rows": 3})
    assert len(family.prepared) == 1 and [told["rows"] for told in family.launches] == list(range(1, 30))


def test_v39_what_is_remembered_is_bounded(family, monkeypatch):
    monkeypatch.setattr(grouped, "_MAX_PLANS", 8)
    call = good("masked")
    for expected in range(1, 51):
        ask(family, "masked", {**call, "expected_m": expected})
        assert len(family._plans) <= 8
    assert len(family.launches) == 50


@every_layout
def test_a_changed_knob_is_heard_by_the_next_call(family, layout):
    call = good(layout)
    ask(family, layout, call)
    with knobs.scope(CHORD_W4A16_STAGES="3"):
        ask(family, layout, call)
    assert len(family.asked) == 2


# -- results ------------------------------------------------------------------------------------------------------------
@every_layout
@pytest.mark.parametrize("swiglu, width", [(False, N), (True, N // 2)])
def test_without_out_the_result_is_made(family, monkeypatch, layout, swiglu, width):
    made, wanted = bf16(ROWS, width), []
    call = {**good(layout), "weight": weight_of(EXPERTS, N, K, interleaved=True), "swiglu": swiglu, "out": None}
    monkeypatch.setattr(torch, "empty", lambda shape, **options: wanted.append((shape, options)) or made)
    assert ask(family, layout, call) is made
    assert wanted == [((ROWS, width), {"dtype": torch.bfloat16, "device": torch.device("cuda", 0)})]
    assert family.launches[0]["out"] == made.data_ptr()


@every_layout
@pytest.mark.parametrize("checked", [False, True])
def test_v48_zero_rows_launch_nothing(family, layout, checked):
    out, call = bf16(0, N), good(layout)
    none = {**call, "x": bf16(0, K), "out": out, "checked": checked}
    if layout == "blocks":
        none["m_indices"] = zeros(0)
    assert ask(family, layout, none) is out
    assert family.launches == family.prepared == family.asked == []


def test_v48_no_slots_are_no_rows(family):
    out = bf16(0, N)
    assert ask(family, "masked", {**good("masked"), "x": bf16(EXPERTS, 0, K), "out": out}) is out and family.launches == []


# -- what stops a call --------------------------------------------------------------------------------------------------
@every_layout
def test_v40_a_cold_call_under_capture_leaves_nothing_behind(family, layout, monkeypatch):
    def refuse(*_):
        raise CaptureError("load a kernel", "it must be loaded before", {}, "warm up")

    call = good(layout)
    with monkeypatch.context() as patch:
        patch.setattr(family, "prepare", refuse)
        for _ in range(2):
            with pytest.raises(CaptureError):
                ask(family, layout, call)
    assert family.launches == []
    ask(family, layout, call)
    assert len(family.prepared) == len(family.launches) == 1
