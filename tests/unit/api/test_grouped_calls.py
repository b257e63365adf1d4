"""contiguous, masked and the weights packed for one of them: handed on unchanged, refused by name, refused off the GPU."""

import inspect

import pytest
import torch

import chord_jit
from chord_jit import api
from chord_jit.errors import InputError, InputTypeError
from chord_jit.families.grouped import FAMILY
from chord_jit.reference import grouped as reference
from chord_jit.routing.grouped import blocks_of, offsets_of
from tests.unit.families.fake_gpu import bf16, machine, routing_of, weight_of

__all__ = ["machine"]

EXPERTS, N, K = 4, 128, 64
COUNTS = torch.tensor([3, 0, 130, 1])
POSITIONAL = {"contiguous": ("x", "weight", "m_indices"), "masked": ("x", "weight", "masked_m", "expected_m")}


def layer(seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (EXPERTS, N, K), dtype=torch.uint8, generator=generator)
    return codes, torch.rand(EXPERTS, N, K // 32, generator=generator).bfloat16() + 0.5


# -- the calls ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", POSITIONAL)
def test_every_option_reaches_the_family(monkeypatch, name):
    call, given, passed = getattr(api, name), {}, {}
    for option, parameter in inspect.signature(call).parameters.items():
        given[option] = object()
        assert (parameter.kind is parameter.KEYWORD_ONLY) == (option not in POSITIONAL[name])
    monkeypatch.setattr(
        FAMILY, name, lambda *tensors, **options: passed.update(zip(POSITIONAL[name], tensors, strict=True), **options) or "the result"
    )
    assert call(**given) == "the result" and passed == given


def test_defaults_are_the_plain_calls(monkeypatch):
    passed = {}
    for name in POSITIONAL:
        monkeypatch.setattr(FAMILY, name, lambda *tensors, name=name, **options: passed.update({name: (tensors, options)}))
    api.contiguous(1, 2)
    api.masked(1, 2, 3, 4)
    plain = {"swiglu": False, "checked": False, "out": None}
    assert passed["contiguous"] == ((1, 2, None), {**plain, "offsets": None, "expected_rows": None})
    assert passed["masked"] == ((1, 2, 3, 4), plain)


def host_calls(seed):
    """The three calls with all tensors on the CPU: api, reference, arguments."""
    weight = chord_jit.pack_w4a16(*layer(seed))
    blocks, offsets = blocks_of(COUNTS), offsets_of(COUNTS)
    x = torch.randn(max(blocks.numel(), EXPERTS * 130), K).bfloat16()
    return [
        (chord_jit.contiguous, reference.contiguous, dict(x=x[: blocks.numel()], weight=weight, m_indices=blocks)),
        (chord_jit.contiguous, reference.contiguous, dict(x=x[:150], weight=weight, offsets=offsets)),
        (chord_jit.masked, reference.masked, dict(x=x[: EXPERTS * 130], weight=weight, masked_m=COUNTS.int(), expected_m=2)),
    ]


def test_on_the_cpu_the_reference_is_named_and_takes_the_same_arguments(seed):
    for call, in_torch, given in host_calls(seed):
        with pytest.raises(InputError, match="one CUDA device") as caught:
            call(**given)
        assert "chord_jit.reference" in caught.value.remedy
        result = in_torch(**given)
        assert result.shape == (given["x"].shape[0], N) and int(result.isfinite().all(1).sum()) == int(COUNTS.sum())


# -- a weight packed for one call ---------------------------------------------------------------------------------------
FORMS = {
    "codes": lambda codes, scale: dict(weight=codes, scale=scale),
    "interleaved": lambda codes, scale: dict(weight=codes, scale=scale, interleave=True),
    "apart": lambda codes, scale: dict(weight=codes, scale=scale, up=codes.flip(1), up_scale=scale.flip(1)),
    "apart, interleaved": lambda codes, scale: dict(weight=codes, scale=scale, up=codes.flip(1), up_scale=scale.flip(1), interleave=True),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("mode", ["contiguous", "masked"])
def test_the_bytes_are_those_of_pack_w4a16(seed, form, mode):
    given = form(*layer(seed))
    plain, reserved = chord_jit.pack_w4a16(**given), chord_jit.pack_w4a16_grouped(**given, mode=mode)
    assert torch.equal(plain.data, reserved.data) and (plain.mode, reserved.mode) == (None, mode)
    fields = ("n", "k", "experts", "interleaved", "layout_version")
    assert [getattr(plain, name) for name in fields] == [getattr(reserved, name) for name in fields]
    assert all(torch.equal(*pair) for pair in zip(chord_jit.unpack_w4a16(plain), chord_jit.unpack_w4a16(reserved), strict=True))
    assert f"mode={mode}" in repr(reserved) and "mode" not in repr(plain)


@pytest.mark.parametrize("mode", ["indexed", "Masked", "", None, 1])
def test_an_unknown_mode_is_refused_before_anything_is_packed(seed, mode):
    with pytest.raises(InputError, match="mode must be one of contiguous or masked") as caught:
        chord_jit.pack_w4a16_grouped("no tensor", None, mode=mode)
    assert caught.value.values == {"mode": repr(mode)} and "pack_w4a16" in caught.value.remedy
    with pytest.raises(InputError, match="mode must be one of"):
        chord_jit.PackedW4A16(chord_jit.pack_w4a16(*layer(seed)).data, N, K, EXPERTS, False, mode=mode or "none")


def test_the_mode_must_be_named(seed):
    with pytest.raises(TypeError, match="mode"):
        chord_jit.pack_w4a16_grouped(*layer(seed))


def test_what_pack_refuses_is_refused_here_too(seed):
    codes, scale = layer(seed)
    with pytest.raises(InputTypeError, match="must hold integers"):
        chord_jit.pack_w4a16_grouped(codes.float(), scale, mode="masked")


CALLS = {
    "contiguous": lambda weight: chord_jit.contiguous(bf16(128, K), weight, torch.zeros(128, dtype=torch.int32)),
    "masked": lambda weight: chord_jit.masked(bf16(128, K), weight, COUNTS.int(), 4),
    "indexed": lambda weight: chord_jit.indexed(bf16(6, K), weight, routing_of(6, 2, 8, EXPERTS)),
    "block_m_for": lambda weight: chord_jit.block_m_for(weight, 3),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", ["contiguous", "masked"])
def test_a_call_of_another_mode_is_refused_by_name(machine, call, mode):
    plain = weight_of(EXPERTS, N, K)
    weight = chord_jit.PackedW4A16(plain.data, N, K, EXPERTS, False, mode=mode)
    if call == mode:
        with pytest.raises(InputError, match="lie on one device"):  # the next rule: this layout lies on the CPU
            CALLS[call](weight)
        return
    with pytest.raises(InputError, match=rf"packed for {mode}\(...\) alone") as caught:
        CALLS[call](weight)
    assert caught.value.values["mode"] == mode and f"call {mode}(...)" in caught.value.remedy and "pack_w4a16" in caught.value.remedy
    assert machine.loads == machine.driver.launches == []
