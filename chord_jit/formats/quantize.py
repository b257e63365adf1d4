"""BF16 weights to symmetric INT4 in groups of 32, as compressed-tensors rounds them, and straight into packed weights."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.moe_weights import MoEWeights, allocate_layer
from chord_jit.formats.w4a16 import GROUP, pack_expert

#: Half of the 15 steps between codes 0 and 15: what an absmax scale divides by.
_HALF_RANGE = 7.5


def quantize_w4a16(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., N, K] and BF16 scales [..., N, K/32] of BF16 [..., N, K], K a multiple of 32, on its device.

    A scale is its group's largest magnitude / 7.5 (BF16's epsilon for a group of zeros), a code ``round(w / scale)`` clamped to
    -8..7, plus 8. Quotients are rounded to BF16 before they are rounded to integers, half to even: compressed-tensors 0.17
    does so for a BF16 weight, and the results are its own, bit for bit. Memory beyond ``weight`` is less than its size twice,
    result included.

    Raises ``InputTypeError`` for another dtype, ``InputError`` for another K and for a weight that is not finite; the latter
    waits for the device.
    """
    asked = "quantise a weight to INT4 in groups of 32"
    if not isinstance(weight, torch.Tensor) or weight.dtype is not torch.bfloat16:
        given = {"weight": getattr(weight, "dtype", type(weight).__name__)}
        raise InputTypeError(asked, "the weight must be a BF16 tensor", given, "pass weight.to(torch.bfloat16)")
    if weight.dim() < 2 or weight.shape[-1] % GROUP:
        raise InputError(
            asked, "the weight must be [..., N, K] with K a multiple of 32", {"shape": list(weight.shape)},
            "take a layer whose sizes are multiples of 32",
        )
    groups = weight.unflatten(-1, (-1, GROUP))
    scale = groups.abs().amax(-1).div_(_HALF_RANGE)
    if not bool(scale.isfinite().all()):
        wrong = int((~scale.isfinite()).sum())
        raise InputError(asked, "the weight must be finite", {"groups with NaN or infinity": wrong}, "check the checkpoint")
    scale[scale == 0] = torch.finfo(torch.bfloat16).eps
    codes = (groups / scale.unsqueeze(-1)).clamp_(-8, 7).round_().add_(8).to(torch.uint8)
    return codes.flatten(-2), scale


def quantize_layer(gate_up: torch.Tensor, down: torch.Tensor) -> MoEWeights:
    """The experts of one layer, quantised by ``quantize_w4a16`` and packed for ``MoELayer``, on their device.

    ``gate_up``: BF16 [E, 2 * neurons, hidden], gate rows first; ``down``: BF16 [E, hidden, neurons]; any strides; ``hidden`` and
    ``neurons`` multiples of 32. Beyond source and result (9/32 of the source, without padding) memory holds the quantisation
    of one expert. Raises ``InputTypeError`` / ``InputError`` as ``quantize_w4a16`` does, and for shapes and devices that differ.
    """
    asked = "quantise the experts of a layer"
    right = gate_up.dim() == down.dim() == 3 and gate_up.device == down.device
    if not right or gate_up.shape != (down.shape[0], 2 * down.shape[2], down.shape[1]) or min(down.shape) == 0:
        raise InputError(
            asked, "gate_up must be [E, 2 * neurons, hidden] and down [E, hidden, neurons], on one device",
            {"gate_up": list(gate_up.shape), "down": list(down.shape), "devices": (str(gate_up.device), str(down.device))},
            "pass both weights of one layer",
        )
    experts, hidden, neurons = down.shape
    if hidden % GROUP or neurons % GROUP:
        raise InputError(
            asked, "hidden size and neurons must be multiples of 32", {"hidden": hidden, "neurons": neurons}, "leave this layer as it is"
        )
    weights = allocate_layer(experts, hidden, neurons, True, down.device)
    for packed, source in ((weights.gate_up, gate_up), (weights.down, down)):
        for expert in range(experts):
            pack_expert(packed, expert, *(part.unsqueeze(0) for part in quantize_w4a16(source[expert])))
    return weights
