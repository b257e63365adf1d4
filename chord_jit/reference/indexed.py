"""The indexed MoE GEMM in plain torch and FP64, called as ``api.indexed`` is."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import PackedW4A16, require_layout, require_mode
from chord_jit.reference.w4a16 import check_x, multiply, result_for
from chord_jit.routing.indexed import IndexedRouting

_ASKED = "compute the indexed reference"


def indexed(
    x: torch.Tensor,
    weight: PackedW4A16,
    routing: IndexedRouting,
    *,
    swiglu: bool = False,
    topk_weights: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    variant: str = "exact",
) -> torch.Tensor:
    """Row ``id`` of the result is row ``id // top_k`` of ``x`` times the weight of the expert whose block names ``id``.

    ``x``: [M, K], any float dtype. ``routing``: as ``api.indexed`` takes it; only the first ``num_tokens_padded`` slots and
    their blocks are read. ``swiglu``: gate rows first (logical order), result ``silu(gate) * up``, N/2 wide.
    ``topk_weights``: [M * top_k] or [M, top_k], multiplies row ``id`` last. ``variant``: ``exact`` or ``bf16`` weights, see
    ``reference.w4a16.dequantize``; sums and SwiGLU are FP64 in both. Returns float64 [M * top_k, N or N/2], or ``out``,
    which must have that shape and dtype: rows that no valid block names keep what ``out`` held, and are NaN without ``out``.

    Dequantises one expert at a time and only experts that have rows. Raises ``InputError`` for shapes that do not fit
    and for an id or its expert that does not exist.
    """
    require_layout(weight)
    require_mode(weight, "indexed")
    top_k, rows, width = routing.top_k, x.shape[0] * routing.top_k, weight.n // 2 if swiglu else weight.n
    check_x(_ASKED, x, weight)
    if topk_weights is not None and topk_weights.numel() != rows:
        raise InputError(
            _ASKED, "topk_weights must hold one value for each routed row", {"values": topk_weights.numel(), "rows": rows},
            "pass [M, top_k] or [M * top_k]",
        )
    out = result_for(_ASKED, x, (rows, width), out)
    every_id, owners = _valid_ids(routing, rows, weight.experts)
    for expert in owners.unique().tolist():
        ids = every_id[owners == expert]
        result = multiply(x[ids // top_k], weight, expert, swiglu=swiglu, variant=variant)
        if topk_weights is not None:
            result = result * topk_weights.reshape(-1)[ids].double().unsqueeze(-1)
        out[ids] = result
    return out


def _valid_ids(routing: IndexedRouting, rows: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Valid ids of the slots in use, and the expert of each; what lies past those slots is never looked at."""
    slots = int(routing.num_tokens_padded)
    ids = routing.sorted_ids[:slots].long()
    owners = routing.expert_ids[: slots // routing.block_m].long().repeat_interleave(routing.block_m)[: ids.numel()]
    valid = ids < rows
    ids, owners = ids[valid], owners[valid]
    for name, values, limit in (("id", ids, rows), ("expert", owners, experts)):
        wrong = values[(values < 0) | (values >= limit)]
        if wrong.numel():
            raise InputError(
                _ASKED, f"every {name} in use must exist", {name: int(wrong[0]), "limit": limit, "wrong": wrong.numel()},
                "check the routing with check_values",
            )
    return ids, owners
