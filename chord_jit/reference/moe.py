"""The routed experts of a whole MoE layer in plain torch and FP64, called as ``MoELayer`` is."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.reference.w4a16 import check_x, multiply
from chord_jit.routing.indexed.align import local_experts

_ASKED = "compute the reference of a MoE layer"


def moe(
    x: torch.Tensor,
    weights: MoEWeights,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    expert_map: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each token's sum of ``topk_weights * down(silu(gate(x)) * up(x))`` over its local experts, and ``shared``.

    ``x``: [tokens, hidden], any float dtype. ``topk_ids``: integers [tokens, top_k]; ``topk_weights``: any float dtype, the
    same shape. ``expert_map``: integers [global experts], the local expert of each or -1; without it ids are local already.
    An id of no local expert, -1 and out of range among them, adds nothing and its routing weight is not read; an expert that a
    token names twice counts twice. ``shared``: [tokens, hidden], any float dtype. All on one device.

    Nothing is rounded between ``x`` and the result: weights are ``(code - 8) * scale``, the values between gate/up and down
    are FP64, unlike those of a layer, which are BF16. Returns float64 [tokens, hidden]; a token without a local expert is
    ``shared`` or zero. Dequantises one expert at a time and only experts that have rows. Raises ``InputError`` /
    ``InputTypeError`` for shapes and dtypes that do not fit.
    """
    check_x(_ASKED, x, weights.gate_up)
    _check(x, weights, topk_ids, topk_weights, shared)
    out = x.new_zeros(x.shape[0], weights.down.n, dtype=torch.float64)
    if shared is not None:
        out += shared.double()
    local = local_experts(topk_ids.long().reshape(-1), weights.gate_up.experts, expert_map).view(topk_ids.shape)
    for expert in local[local < weights.gate_up.experts].unique().tolist():
        token, slot = (local == expert).nonzero(as_tuple=True)
        middle = multiply(x[token], weights.gate_up, expert, swiglu=True, variant="exact")
        rows = multiply(middle, weights.down, expert, swiglu=False, variant="exact")
        out.index_add_(0, token, rows * topk_weights[token, slot].double().unsqueeze(-1))
    return out


def _check(
    x: torch.Tensor, weights: MoEWeights, topk_ids: torch.Tensor, topk_weights: torch.Tensor, shared: torch.Tensor | None
) -> None:
    gate_up, down = weights.gate_up, weights.down
    if (down.n, down.k, down.experts) != (gate_up.k, gate_up.n // 2, gate_up.experts):
        raise InputError(
            _ASKED, "down must lead from gate_up's neurons back to its K, with as many experts", {"gate_up": gate_up, "down": down},
            "pass both weights of one layer",
        )
    if topk_ids.is_floating_point() or not topk_weights.is_floating_point():
        raise InputTypeError(
            _ASKED, "topk_ids must be integers and topk_weights floats", {"topk_ids": topk_ids.dtype, "topk_weights": topk_weights.dtype},
            "pass the router's ids and weights in this order",
        )
    if topk_ids.dim() != 2 or len(topk_ids) != len(x) or topk_weights.shape != topk_ids.shape:
        raise InputError(
            _ASKED, "topk_ids and topk_weights must be [tokens, top_k]",
            {"tokens": len(x), "topk_ids": list(topk_ids.shape), "topk_weights": list(topk_weights.shape)}, "pass those of these tokens",
        )
    if shared is not None and shared.shape != x.shape:
        raise InputError(
            _ASKED, "the shared output must have the shape of x", {"shared": list(shared.shape), "x": list(x.shape)},
            "pass the shared expert's output for these tokens",
        )
