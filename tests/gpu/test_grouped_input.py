"""Bad grouped input is refused with what was asked, the rule, the values and the remedy, before anything is launched."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import counters, knobs
from chord_jit.errors import ChordError, InputError, InputTypeError, OverrideError
from chord_jit.families import grouped_launch, kernels
from chord_jit.jit.launch import Launch
from tests.gpu.grouped_cases import shaped
from tests.gpu.grouped_workload import LAYOUTS, NAMES, build
from tests.gpu.tensors import POISON, bits, fenced_out, moved, strided, weight_of

CASES = {layout: shaped(layout, 4, 60, "equal", room=4) for layout in LAYOUTS}
KERNELS = [(case, None) for case in CASES.values()]


def wrong_mode(call):
    return dict(weight=replace(call["weight"], mode="contiguous" if "masked_m" in call else "masked"))


def moved_weight(call):
    return dict(weight=replace(call["weight"], data=moved(call["weight"].data)))


def like_out(call, dtype=torch.bfloat16, rows=0, columns=0):
    out = call["out"]
    return torch.ones(out.shape[0] + rows, out.shape[1] + columns, dtype=dtype, device=out.device)


# Of every layout. name: the error, and the change to a good call.
ANY = {
    "x float16": (InputTypeError, lambda call: dict(x=call["x"].half())),
    "x float32": (InputTypeError, lambda call: dict(x=call["x"].float())),
    "x a list": (InputTypeError, lambda call: dict(x=[[1.0] * 768])),
    "x on the CPU": (InputError, lambda call: dict(x=call["x"].cpu())),
    "x 1-D": (ChordError, lambda call: dict(x=call["x"].view(-1))),
    "x 4-D": (ChordError, lambda call: dict(x=call["x"].view(1, 1, -1, 768))),
    "x too narrow": (InputError, lambda call: dict(x=call["x"][:, :640].contiguous())),
    "x too wide": (InputError, lambda call: dict(x=torch.cat((call["x"], call["x"]), 1))),
    "x with rows apart": (InputError, lambda call: dict(x=strided(call["x"]))),
    "x transposed": (InputError, lambda call: dict(x=call["x"].T.contiguous().T)),
    "x off alignment by 2 bytes": (InputError, lambda call: dict(x=moved(call["x"]))),
    "x off alignment by 8 bytes": (InputError, lambda call: dict(x=moved(call["x"], 4))),
    "weight unpacked": (InputTypeError, lambda call: dict(weight=call["weight"].data)),
    "weight of another layout": (InputError, lambda call: dict(weight=replace(call["weight"], layout_version=2))),
    "weight of another call": (InputError, wrong_mode),
    "weight on the CPU": (InputError, lambda call: dict(weight=replace(call["weight"], data=call["weight"].data.cpu()))),
    "weight off alignment": (InputError, moved_weight),
    "swiglu on a plain weight": (InputError, lambda call: dict(swiglu=True)),
    "out float32": (ChordError, lambda call: dict(out=like_out(call, torch.float32))),
    "out on the CPU": (InputError, lambda call: dict(out=call["out"].cpu())),
    "out too short": (InputError, lambda call: dict(out=like_out(call, rows=-1))),
    "out too long": (InputError, lambda call: dict(out=like_out(call, rows=1))),
    "out too narrow": (InputError, lambda call: dict(out=like_out(call, columns=-512))),
    "out 3-D": (InputError, lambda call: dict(out=like_out(call).unsqueeze(0))),
    "out with rows apart": (InputError, lambda call: dict(out=strided(like_out(call)))),
    "out off alignment": (InputError, lambda call: dict(out=moved(like_out(call)))),
    "out a list": (ChordError, lambda call: dict(out=[0])),
}  # fmt: skip


def changed(name, change):
    """A change to the tensor of a layout."""
    return lambda call: {name: change(call[name])}


def of_layout(layout):
    """What is wrong with the tensor of a layout, whichever it is."""
    name, wrong = NAMES[layout], torch.int32 if layout == "offsets" else torch.int64
    return {
        f"{name} of another dtype": (InputTypeError, changed(name, lambda values: values.to(wrong))),
        f"{name} float": (InputTypeError, changed(name, lambda values: values.float())),
        f"{name} a list": (InputTypeError, changed(name, lambda values: values.tolist())),
        f"{name} on the CPU": (InputError, changed(name, lambda values: values.cpu())),
        f"{name} 2-D": (InputError, changed(name, lambda values: values.view(1, -1))),
        f"{name} strided": (InputError, changed(name, lambda values: values.repeat_interleave(2)[::2])),
        f"{name} too short": (InputError, changed(name, lambda values: values[:-1])),
        f"{name} too long": (InputError, changed(name, lambda values: torch.cat((values, values[-1:])))),
    }


def hints(name):
    return {
        f"{name} negative": (ChordError, lambda call: {name: -1}),
        f"{name} too large": (ChordError, lambda call: {name: 2**31}),
        f"{name} text": (InputTypeError, lambda call: {name: "8"}),
        f"{name} True": (InputTypeError, lambda call: {name: True}),
    }


OWN = {
    "masked": {
        **of_layout("masked"), **hints("expected_m"),
        "expected_m 0": (InputError, lambda call: dict(expected_m=0)),
        "expected_m a float": (InputTypeError, lambda call: dict(expected_m=8.0)),
        "x of uneven rows": (InputError, lambda call: dict(x=call["x"][:-1])),
        "x of other slices": (InputError, lambda call: dict(x=call["x"].view(2, -1, 768))),
        "weight of other experts": (InputError, lambda call: dict(weight=weight_of(8, 1024, 768, False, call["x"].device))),
    },
    "offsets": {
        **of_layout("offsets"), **hints("expected_rows"),
        "expected_rows NaN": (ChordError, lambda call: dict(expected_rows=float("nan"))),
        "both layouts": (ChordError, lambda call: dict(m_indices=torch.zeros(len(call["x"]), dtype=torch.int32, device=call["x"].device))),
        "neither layout": (ChordError, lambda call: dict(offsets=None)),
        "x 3-D": (ChordError, lambda call: dict(x=call["x"].unsqueeze(0))),
        "weight of other experts": (InputError, lambda call: dict(weight=weight_of(8, 1024, 768, False, call["x"].device))),
    },
    "blocks": {
        **of_layout("blocks"), **hints("expected_rows"),
        "rows that are no blocks": (InputError, lambda call: dict(x=call["x"][:-8], m_indices=call["m_indices"][:-8])),
    },
}  # fmt: skip
BAD = [(layout, name) for layout in LAYOUTS for name in (*ANY, *OWN[layout])]


def good(layout, gpu, seed):
    work = build(CASES[layout], gpu, seed)
    assert bool(work.fenced_call()[work.owned].isfinite().all())  # what the bad calls are changes of
    hint = "expected_m" if layout == "masked" else "expected_rows"
    _, out = fenced_out(len(work.x), 1024, gpu)
    return {"x": work.x, "weight": work.weight, NAMES[layout]: work.values, hint: 64, "out": out}


def ask(layout, call):
    return (chord_jit.masked if layout == "masked" else chord_jit.contiguous)(**call)


@pytest.mark.quick
@pytest.mark.parametrize("layout, name", BAD, ids=[f"{layout}-{name}" for layout, name in BAD])
def test_v43_bad_input_is_refused_before_a_launch(layout, name, gpu, seed, monkeypatch):
    error, change = {**ANY, **OWN[layout]}[name]
    call = good(layout, gpu, seed)
    before = counters()
    monkeypatch.setattr(Launch, "__call__", lambda *_: pytest.fail("launched"))
    with pytest.raises(error) as caught:
        ask(layout, {**call, **change(call)})
    assert caught.value.asked and caught.value.rule and caught.value.values and caught.value.remedy
    assert counters() == before
    assert bool((bits(call["out"]) == POISON).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spoil", [strided, moved], ids=["rows apart", "off alignment"])
def test_v44_the_refusal_of_activations_says_what_tma_needs(spoil, layout, gpu, seed):
    call = good(layout, gpu, seed)
    with pytest.raises(InputError, match="contiguous, 16-byte aligned as TMA loads need"):
        ask(layout, {**call, "x": spoil(call["x"])})
    assert bool((bits(call["out"]) == POISON).all())


ILLEGAL = [
    (dict(CHORD_W4A16_BM="24"), "BM must"),
    (dict(CHORD_W4A16_BN="48"), "BN must"),
    (dict(CHORD_W4A16_BK="100"), "BK must"),
    (dict(CHORD_W4A16_STAGES="1"), "STAGES must"),
    (dict(CHORD_W4A16_BM="256", CHORD_W4A16_BN="128", CHORD_W4A16_BK="64", CHORD_W4A16_STAGES="16"), "shared memory"),
    (dict(CHORD_W4A16_SPLIT="9"), "SPLIT must"),
    (dict(CHORD_W4A16_CTAS="9"), "CTAS must"),
    (dict(CHORD_W4A16_CM="2"), "CM (and CN )?must"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("overrides, rule", ILLEGAL, ids=[" ".join(overrides) for overrides, _ in ILLEGAL])
def test_v57_an_illegal_override_names_itself_and_launches_nothing(overrides, rule, layout, gpu, seed, monkeypatch):
    call = good(layout, gpu, seed)
    before = counters()
    monkeypatch.setattr(Launch, "__call__", lambda *_: pytest.fail("launched"))
    with knobs.scope(**overrides), pytest.raises(OverrideError, match=rule) as caught:
        ask(layout, call)
    assert set(overrides) <= set(caught.value.values)
    assert counters() == before and bool((bits(call["out"]) == POISON).all())


def test_a_split_of_the_kernel_of_few_rows_is_refused_or_launched_as_clusters(gpu, seed, monkeypatch):
    """Its CTAs exchange parts through each other's shared memory; without a cluster they would wait for ever, so nothing is run."""
    call, shapes = good("masked", gpu, seed), []

    class Seen(Launch):
        def __init__(self, handle, grid, block, cluster, *rest):
            super().__init__(handle, grid, block, cluster, *rest)
            shapes.append((grid, cluster))

        def __call__(self, *values):
            pass

    monkeypatch.setattr(kernels, "Launch", Seen)
    monkeypatch.setattr(grouped_launch, "_bound", {})
    with knobs.scope(CHORD_W4A16_BM="8", CHORD_W4A16_SPLIT="2"):
        try:
            ask("masked", call)
        except OverrideError as error:
            assert "SPLIT" in str(error)
            return
    assert [cluster for _, cluster in shapes] == [2], f"split over 2 CTAs, launched with (grid, cluster) {shapes}"
