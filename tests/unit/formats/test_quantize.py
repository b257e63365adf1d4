"""INT4 groups of 32: numbers worked out by hand, compressed-tensors' own results, packed layers, memory, refusals."""

from __future__ import annotations

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.quantize import quantize_layer, quantize_w4a16
from chord_jit.formats.w4a16 import unpack_w4a16
from tests.unit.formats.live_bytes import LiveBytes

EXPERTS, HIDDEN, NEURONS = 5, 96, 64
EPSILON = 2.0**-7


def library(weight):
    """Codes 0..15 and scales of compressed-tensors for BF16 [N, K]."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    arguments = quantization.QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    groups = weight.unflatten(-1, (-1, 32))
    scale, zero = quantization.utils.calculate_qparams(groups.amin(-1), groups.amax(-1), arguments)
    return forward.quantize(weight, scale, zero, arguments, dtype=torch.int8) + 8, scale


def layer(seed, experts=EXPERTS):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(experts, 2 * NEURONS, HIDDEN, generator=generator).bfloat16(),
        torch.randn(experts, HIDDEN, NEURONS, generator=generator).bfloat16(),
    )


def test_codes_and_scales_by_hand():
    """Largest magnitude 7.5 or 15: steps of 1 or 2; ties go to the even integer, +7.5 steps are clamped to 7."""
    row = torch.zeros(1, 96).bfloat16()
    row[0, :8] = torch.tensor([-7.5, 7.5, 0.5, 1.5, -2.5, 3.4, -0.4, 1.0])
    row[0, 32:36] = torch.tensor([15.0, -15.0, 3.0, -2.0])
    codes, scale = quantize_w4a16(row)
    assert codes.dtype == torch.uint8 and codes.shape == (1, 96) and scale.dtype == torch.bfloat16
    assert scale.tolist() == [[1.0, 2.0, EPSILON]]
    assert codes[0, :9].tolist() == [0, 15, 8, 10, 6, 11, 8, 9, 8]
    assert codes[0, 32:37].tolist() == [15, 0, 10, 7, 8]
    assert codes[0, 64:].tolist() == [8] * 32


@pytest.mark.parametrize("exponent", [-130, -100, -6, 0, 100])
def test_the_library_gives_the_same_bits(seed, exponent):
    """Normal values, some groups of zeros, of one value, of a coarse grid full of ties; down to BF16's smallest magnitudes."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(seed))
    weight[0], weight[1, :64] = 0, 3
    weight[2:20] = (weight[2:20] * 4).round() / 4
    weight = (weight * 2.0**exponent).bfloat16()
    codes, scale = quantize_w4a16(weight)
    want_codes, want_scale = library(weight)
    assert torch.equal(codes, want_codes.to(torch.uint8)) and torch.equal(scale, want_scale)
    assert scale.min() > 0


def test_a_code_is_within_half_a_step(seed):
    """And a whole one where +7.5 steps were clamped; the quotient's own rounding to BF16 is at most 1/64 of a step."""
    weight = torch.randn(8, 320, generator=torch.Generator().manual_seed(seed)).bfloat16()
    codes, scale = quantize_w4a16(weight)
    steps = weight.double() / scale.double().repeat_interleave(32, 1)
    error = (steps - (codes.double() - 8)).abs()
    assert float(error.max()) < 0.6 and float(error[codes < 15].max()) <= 0.5 + 1 / 64


def test_leading_dimensions_and_strides_change_nothing(seed):
    gate_up, _ = layer(seed)
    codes, scale = quantize_w4a16(gate_up)
    turned = quantize_w4a16(gate_up.mT.contiguous().mT)
    assert torch.equal(turned[0], codes) and torch.equal(turned[1], scale)
    for expert in range(EXPERTS):
        alone = quantize_w4a16(gate_up[expert])
        assert torch.equal(alone[0], codes[expert]) and torch.equal(alone[1], scale[expert])


def test_a_layer_is_packed_as_its_parts_are_quantised(seed):
    gate_up, down = layer(seed)
    kept = gate_up.clone(), down.clone()
    weights = quantize_layer(gate_up, down)
    assert weights.gate_up.interleaved and not weights.down.interleaved
    for packed, source in ((weights.gate_up, gate_up), (weights.down, down)):
        for got, want in zip(unpack_w4a16(packed), quantize_w4a16(source), strict=True):
            assert torch.equal(got, want)
    assert torch.equal(gate_up, kept[0]) and torch.equal(down, kept[1])


def test_scratch_is_that_of_one_expert(seed):
    def scratch(experts):
        source = layer(seed, experts)
        with LiveBytes() as live:
            weights = quantize_layer(*source)
        return live.peak - weights.gate_up.nbytes - weights.down.nbytes

    few, many = scratch(2), scratch(9)
    assert 0 < many < 3 * 2 * (2 * NEURONS * HIDDEN), "at most three times the BF16 bytes of one expert's larger weight"
    assert abs(many - few) < 2048, "the number of experts must not show"


def nan_in(tensor):
    tensor[1, 2, 3] = float("nan")
    return tensor


REFUSED = {
    "float32": (InputTypeError, "weight=torch.float32", lambda: quantize_w4a16(torch.ones(8, 32))),
    "no tensor": (InputTypeError, "weight=list", lambda: quantize_w4a16([1.0])),
    "K": (InputError, r"shape=\[8, 40\]", lambda: quantize_w4a16(torch.ones(8, 40).bfloat16())),
    "vector": (InputError, r"shape=\[32\]", lambda: quantize_w4a16(torch.ones(32).bfloat16())),
    "infinity": (InputError, "NaN or infinity=8", lambda: quantize_w4a16(torch.full((8, 32), float("inf")).bfloat16())),
    "NaN in a layer": (InputError, "NaN or infinity=1", lambda: quantize_layer(nan_in(layer(0)[0]), layer(0)[1])),
    "layer of another dtype": (InputTypeError, "float16", lambda: quantize_layer(*(part.half() for part in layer(0)))),
    "two layers": (InputError, "both weights of one layer", lambda: quantize_layer(layer(0)[0], layer(0, 4)[1])),
    "transposed": (InputError, "both weights of one layer", lambda: quantize_layer(*(part.mT for part in layer(0)))),
    "no experts": (InputError, "both weights of one layer", lambda: quantize_layer(*layer(0, 0))),
    "hidden": (
        InputError, "hidden=48, neurons=32",
        lambda: quantize_layer(torch.ones(2, 64, 48).bfloat16(), torch.ones(2, 48, 32).bfloat16()),
    ),
    "neurons": (
        InputError, "hidden=32, neurons=20",
        lambda: quantize_layer(torch.ones(2, 40, 32).bfloat16(), torch.ones(2, 32, 20).bfloat16()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("error, says, ask", REFUSED.values(), ids=REFUSED)
def test_refused(error, says, ask):
    with pytest.raises(error, match=says):
        ask()
