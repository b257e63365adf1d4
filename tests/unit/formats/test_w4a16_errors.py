"""Bad input to the packing: each refused before any work, with the rule and the values."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chord_jit.errors import ChordError, InputError, InputTypeError
from chord_jit.formats.w4a16 import PackedW4A16, allocate, pack_expert, pack_w4a16, require_layout, unpack_w4a16
from tests.unit.formats.w4a16_figure import draw

E, N, K = 3, 24, 64


def with_value(tensor, index, value):
    changed = tensor.clone()
    changed[index] = value
    return changed


CODES, SCALE = draw(11, E, N, K)
WIDE = CODES.to(torch.int16)
UP = {"up": CODES, "up_scale": SCALE}
NAN, INF = float("nan"), float("inf")

# what is handed over besides the defaults, the error, and what it must say
REFUSED = {
    "weight no tensor": ({"weight": [[1]]}, InputTypeError, "weight must be a tensor.*type=list"),
    "scale no tensor": ({"scale": None}, InputTypeError, "weight's scale must be a tensor"),
    "weight float": ({"weight": CODES.float()}, InputTypeError, r"integers.*dtype=torch\.float32"),
    "weight bool": ({"weight": CODES > 7}, InputTypeError, r"dtype=torch\.bool"),
    "scale half": ({"scale": SCALE.half()}, InputTypeError, r"bfloat16.*dtype=torch\.float16"),
    "no expert dimension": ({"weight": CODES[0], "scale": SCALE[0]}, InputError, r"weight=\(24, 64\)"),
    "no experts": ({"weight": CODES[:0], "scale": SCALE[:0]}, InputError, "none of them empty"),
    "K not a multiple of 32": ({"weight": CODES[..., :48]}, InputError, "multiple of 32.*K by the scale=64"),
    "K 0": ({"weight": CODES[..., :0], "scale": SCALE[..., :0]}, InputError, "none of them empty"),
    "N of the scale": ({"scale": SCALE[:, :16]}, InputError, r"weight=\(3, 24, 64\), scale=\(3, 16, 2\)"),
    "E of the scale": ({"scale": SCALE[:2]}, InputError, r"scale=\(2, 24, 2\)"),
    "groups of 64": ({"scale": SCALE[..., :1]}, InputError, "K by the scale=32"),
    "words that are no int32": ({"weight": CODES[..., :8].to(torch.int16)}, InputError, "int32 words"),
    "N not a multiple of 8": ({"weight": CODES[:, :20], "scale": SCALE[:, :20]}, InputError, "multiple of 8.*N=20"),
    "meta device": ({"weight": CODES.to("meta"), "scale": SCALE.to("meta")}, InputError, "CPU or CUDA.*weight=meta"),
    "two devices": ({"scale": SCALE.to("meta")}, InputError, "one CPU or CUDA device.*weight=cpu, scale=meta"),
    "code 16": ({"weight": with_value(CODES, (1, 2, 3), 16)}, InputError, r"0\.\.15.*outside=1, .*\[1, 2, 3\], value=16"),
    "signed codes": ({"weight": WIDE - 8}, InputError, rf"outside={int((CODES < 8).sum())},"),
    "uint64 beyond int64": ({"weight": with_value(CODES.long(), (0, 0, 5), -1).view(torch.uint64)}, InputError, r"outside=1.*\[0, 0, 5\]"),
    "scale NaN": ({"scale": with_value(SCALE, (2, 5, 1), NAN)}, InputError, r"NaN or inf=1, .*\[2, 5, 1\], value=nan"),
    "scales inf": ({"scale": with_value(with_value(SCALE, (0, 9, 0), -INF), (2, 0, 0), INF)}, InputError, r"=2, .*0, 9, 0\], value=-inf"),
    "up without scale": ({"up": CODES}, InputTypeError, "together.*up=True, up_scale=False"),
    "scale without up": ({"up_scale": SCALE}, InputTypeError, "together.*up=False, up_scale=True"),
    "up of another N": ({"up": CODES[:, :16], "up_scale": SCALE[:, :16]}, InputError, "one shape and device"),
    "up of another K": ({"up": CODES[..., :32], "up_scale": SCALE[..., :1]}, InputError, "one shape and device"),
    "code in up": ({**UP, "up": with_value(WIDE, (0, 0, 63), -1)}, InputError, r"up's codes.*\[0, 0, 63\], value=-1"),
    "NaN in up": ({**UP, "up_scale": with_value(SCALE, (0, 1, 1), NAN)}, InputError, r"up's scales.*\[0, 1, 1\]"),
    "odd halves": ({"weight": CODES[:, :6], "scale": SCALE[:, :6], "up": CODES[:, :6], "up_scale": SCALE[:, :6]}, InputError, "N=12"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("interleave", [False, True])
def test_v51_refused(name, interleave):
    changes, error, says = REFUSED[name]
    with pytest.raises(error, match=f"(?s){says}") as caught:
        pack_w4a16(**{"weight": CODES, "scale": SCALE, "interleave": interleave, **changes})
    assert isinstance(caught.value, ChordError)
    assert caught.value.asked == "pack a W4A16 weight"
    assert caught.value.remedy


def test_every_bad_code_is_counted():
    bad = CODES.to(torch.int32)
    bad[0, 3, 7], bad[0, 3, 9], bad[2] = -1, 99, 16
    with pytest.raises(InputError, match=rf"outside={2 + N * K}, first at \[expert, n, k\]=\[0, 3, 7\], value=-1"):
        pack_w4a16(bad, SCALE)


def test_extreme_but_finite_scales_survive():
    extreme = torch.tensor([0.0, -0.0, 2.0**-133, torch.finfo(torch.bfloat16).max]).bfloat16().repeat(E * N * 2 // 4).view(E, N, 2)
    _, again = unpack_w4a16(pack_w4a16(CODES, extreme))
    assert torch.equal(again.view(torch.int16), extreme.view(torch.int16))


@pytest.mark.parametrize(
    ("place", "rows", "k", "says"),
    [(E, N, K, "expert 3"), (-1, N, K, "expert -1"), (0, 16, K, r"given=\(1, 16, 64"), (0, N, 32, r"given=\(1, 24, 32")],
)
def test_an_expert_that_does_not_fit(place, rows, k, says):
    packed = allocate(E, N, K, False, "cpu")
    with pytest.raises(InputError, match=says):
        pack_expert(packed, place, CODES[:1, :rows, :k], SCALE[:1, :rows, : k // 32])


def test_another_layout_version_is_refused():
    other = dataclasses.replace(pack_w4a16(CODES, SCALE), layout_version=2)
    for use in (require_layout, unpack_w4a16):
        with pytest.raises(InputError, match="layout_version=2, wanted=1"):
            use(other)
    with pytest.raises(InputTypeError, match="type=Tensor"):
        require_layout(other.data)


DATA = torch.zeros(3, 1, 1, 4608, dtype=torch.uint8)
MISFITS = {
    "experts": (DATA, 24, 64, 2, False),
    "panels": (DATA, 136, 64, 3, False),
    "panels of halves": (DATA, 136, 64, 3, True),
    "kblocks": (DATA, 24, 96, 3, False),
    "dtype": (DATA.to(torch.int8), 24, 64, 3, False),
}


@pytest.mark.parametrize("name", MISFITS)
def test_data_that_does_not_fit_its_description(name):
    with pytest.raises(InputError, match="4608"):
        PackedW4A16(*MISFITS[name])


def test_data_must_be_contiguous():
    with pytest.raises(InputError, match="contiguous=False"):
        PackedW4A16(DATA.repeat(2, 1, 1, 1)[::2], 24, 64, 3, False)
    PackedW4A16(DATA, 24, 64, 3, False)
