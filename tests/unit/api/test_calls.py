"""The public calls: handed on unchanged, and refused with a remedy where there is no GPU."""

import inspect
from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import api, device, knobs
from chord_jit.errors import InputError, InputTypeError, OverrideError, UnsupportedDeviceError
from chord_jit.families.indexed import FAMILY
from chord_jit.reference import indexed as reference
from tests.unit.families.fake_gpu import H200, bf16, machine, on_gpu, routing_of, weight_of

__all__ = ["machine"]

TOKENS, TOP_K, EXPERTS, N, K = 5, 2, 4, 128, 64


@pytest.fixture
def host_call():
    """A complete and valid call whose tensors all lie on the CPU."""
    codes = torch.randint(0, 16, (EXPERTS, N, K), dtype=torch.uint8)
    weight = chord_jit.pack_w4a16(codes, torch.rand(EXPERTS, N, K // 32).bfloat16() + 0.5)
    ids = torch.rand(TOKENS, EXPERTS).argsort(1)[:, :TOP_K]
    return dict(x=torch.randn(TOKENS, K).bfloat16(), weight=weight, routing=chord_jit.align_blocks(ids, 8, EXPERTS))


# -- indexed ------------------------------------------------------------------------------------------------------------
def test_on_the_cpu_the_reference_is_named_and_works(host_call):
    with pytest.raises(InputError, match="one CUDA device") as caught:
        chord_jit.indexed(**host_call)
    assert "chord_jit.reference" in caught.value.remedy and caught.value.values == {"x": torch.device("cpu"), "weight": torch.device("cpu")}
    result = reference.indexed(**host_call)
    assert result.shape == (TOKENS * TOP_K, N) and bool(result.isfinite().all())


HOST = {
    "weight unpacked": (InputTypeError, "must be a PackedW4A16", lambda call: dict(weight=call["weight"].data)),
    "another layout": (InputError, "layout version", lambda call: dict(weight=replace(call["weight"], layout_version=7))),
    "x float32": (InputTypeError, "BF16 matrix", lambda call: dict(x=call["x"].float())),
    "x numpy": (InputTypeError, "BF16 matrix", lambda call: dict(x=call["x"].float().numpy())),
    "routing None": (InputError, "one CUDA device", lambda call: dict(routing=None)),
}


@pytest.mark.parametrize("error, rule, change", HOST.values(), ids=HOST)
def test_bad_input_is_refused_without_a_gpu(host_call, error, rule, change):
    with pytest.raises(error, match=rule) as caught:
        chord_jit.indexed(**{**host_call, **change(host_call)})
    assert caught.value.asked and caught.value.values and caught.value.remedy


def test_every_option_reaches_the_family(monkeypatch):
    given, passed = {}, {}
    for name, parameter in inspect.signature(api.indexed).parameters.items():
        given[name] = object()
        assert (parameter.kind is parameter.KEYWORD_ONLY) == (name not in ("x", "weight", "routing"))
    names = ("x", "weight", "routing")
    monkeypatch.setattr(
        FAMILY, "run", lambda *tensors, **options: passed.update(dict(zip(names, tensors, strict=True)), **options) or "the result"
    )
    assert api.indexed(**given) == "the result" and passed == given


def test_defaults_are_the_plain_call(monkeypatch):
    passed = {}
    monkeypatch.setattr(FAMILY, "run", lambda *_, **options: passed.update(options))
    api.indexed(1, 2, 3)
    assert passed == {"swiglu": False, "topk_weights": None, "expected_rows": None, "checked": False, "out": None}


def test_the_package_offers_what_the_api_lists():
    assert set(chord_jit.__all__) == set(api.__all__)
    assert all(getattr(chord_jit, name) is getattr(api, name) for name in api.__all__)


# -- block_m_for --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [0, 0.4, 3.0, 9.0, 30.0, 500])
@pytest.mark.parametrize("interleaved, swiglu", [(False, False), (True, False), (True, True)])
def test_the_block_size_is_the_token_tile_of_the_choice(machine, monkeypatch, rows, interleaved, swiglu):
    problem = FAMILY.problem(H200, EXPERTS, 256, 384, rows, interleaved=interleaved, swiglu=swiglu)
    chosen, asked = FAMILY.schedule(problem), []
    monkeypatch.setattr(FAMILY, "schedule", lambda one: asked.append(one) or chosen)
    assert chord_jit.block_m_for(weight_of(EXPERTS, 256, 384, interleaved), rows, swiglu=swiglu) == chosen.bm
    assert asked == [problem] and machine.loads == []


def test_many_rows_take_the_tall_tile_and_the_override_is_heard(machine):
    weight = weight_of(EXPERTS, 256, 256)
    assert chord_jit.block_m_for(weight, 500) == 16
    for bm in (8, 16):
        with knobs.scope(CHORD_W4A16_BM=str(bm)):
            assert {chord_jit.block_m_for(weight, rows) for rows in (0.1, 3, 500)} == {bm}
    with knobs.scope(CHORD_W4A16_BM="24"), pytest.raises(OverrideError, match="BM must be 8 or 16"):
        chord_jit.block_m_for(weight, 3)


def test_a_routing_built_for_that_size_is_taken_by_both_projections(machine):
    gate_up, down = weight_of(EXPERTS, 256, 128, True), weight_of(EXPERTS, 128, 128)
    block_m = chord_jit.block_m_for(gate_up, TOKENS * TOP_K / EXPERTS, swiglu=True)
    routing, rows = routing_of(TOKENS, TOP_K, block_m, EXPERTS), TOKENS * TOP_K
    inner = chord_jit.indexed(bf16(TOKENS, 128), gate_up, routing, swiglu=True, out=bf16(rows, 128))
    chord_jit.indexed(inner, down, routing.for_down(), topk_weights=on_gpu(torch.rand(TOKENS, TOP_K)), out=bf16(rows, 128))
    assert [told["top_k"] for told in machine.calls] == [TOP_K, 1] and machine.calls[1]["x"] == machine.calls[0]["out"]


BLOCK_SIZE = {
    "no weight": (InputTypeError, "must be a PackedW4A16", None, 3.0),
    "the bytes": (InputTypeError, "must be a PackedW4A16", torch.zeros(1, 1, 1, 4608, dtype=torch.uint8), 3.0),
    "text": (InputTypeError, "expected_rows must be a number", weight_of(EXPERTS, N, K), "3"),
    "negative": (InputError, "expected_rows must lie in", weight_of(EXPERTS, N, K), -1),
    "NaN": (InputError, "expected_rows must lie in", weight_of(EXPERTS, N, K), float("nan")),
}


@pytest.mark.parametrize("error, rule, weight, rows", BLOCK_SIZE.values(), ids=BLOCK_SIZE)
def test_a_block_size_for_nothing_is_refused(machine, error, rule, weight, rows):
    with pytest.raises(error, match=rule):
        chord_jit.block_m_for(weight, rows)


@pytest.mark.parametrize("gpus", [False, True])
def test_a_weight_on_the_cpu_has_no_block_size(host_call, monkeypatch, gpus):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    with pytest.raises(UnsupportedDeviceError, match="must be present and hold the tensors") as caught:
        chord_jit.block_m_for(host_call["weight"], 3.0)
    assert caught.value.values == {"device": -1} and "chord_jit.reference" in caught.value.remedy


def test_v29_a_gpu_of_another_capability_is_refused(monkeypatch):
    class Properties:
        name, major, minor = "NVIDIA A100", 8, 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    device.facts.cache_clear()
    with pytest.raises(UnsupportedDeviceError, match=r"capability=8.0, known=9.0, 10.0, 10.3"):
        chord_jit.block_m_for(weight_of(EXPERTS, N, K), 3.0)
