"""The grouped MoE GEMM in plain torch and FP64, called as ``api.contiguous`` and ``api.masked`` are."""

from __future__ import annotations

import torch

from chord_jit.errors import InputTypeError
from chord_jit.formats.w4a16 import PackedW4A16, require_layout, require_mode
from chord_jit.reference.w4a16 import check_x, multiply, result_for
from chord_jit.routing.checks import check_int
from chord_jit.routing.grouped import (
    check_block_values,
    check_blocks,
    check_count_values,
    check_counts,
    check_offset_values,
    check_offsets,
)

_CONTIGUOUS, _MASKED = "compute the contiguous reference", "compute the masked reference"


def contiguous(
    x: torch.Tensor,
    weight: PackedW4A16,
    m_indices: torch.Tensor | None = None,
    *,
    offsets: torch.Tensor | None = None,
    swiglu: bool = False,
    out: torch.Tensor | None = None,
    variant: str = "exact",
) -> torch.Tensor:
    """Row ``r`` of the result is row ``r`` of ``x`` times the weight of the expert that owns it.

    ``x``: [m, K], any float dtype. ``m_indices`` or ``offsets``: as ``api.contiguous`` takes them, always checked.
    ``swiglu``: gate rows first (logical order), result ``silu(gate) * up``, N/2 wide. ``variant``: ``exact`` or ``bf16``
    weights, see ``reference.w4a16.dequantize``; sums and SwiGLU are FP64 in both. Returns float64 [m, N or N/2], or ``out``,
    which must have that shape and dtype: rows that no expert owns are never read, keep what ``out`` held, and are NaN
    without ``out``.

    Dequantises one expert at a time and only experts that have rows. Raises ``InputError`` / ``InputTypeError`` for shapes
    that do not fit and for a layout that breaks its contract.
    """
    require_layout(weight)
    require_mode(weight, "contiguous")
    check_x(_CONTIGUOUS, x, weight)
    if (m_indices is None) == (offsets is None):
        raise InputTypeError(_CONTIGUOUS, "exactly one of m_indices and offsets must be given", {}, "pass the one that describes x")
    rows = x.shape[0]
    if offsets is None:
        check_blocks(_CONTIGUOUS, m_indices, rows, x.device)
        check_block_values(m_indices, weight.experts)
        owners = m_indices.long()
    else:
        check_offsets(_CONTIGUOUS, offsets, weight.experts, x.device)
        check_offset_values(offsets, rows)
        owners = torch.searchsorted(offsets, torch.arange(rows, device=x.device), right=True) - 1
        owners[owners == weight.experts] = -1
    return _multiply_owned(_CONTIGUOUS, x, weight, owners, swiglu, out, variant)


def masked(
    x: torch.Tensor,
    weight: PackedW4A16,
    masked_m: torch.Tensor,
    expected_m: int,
    *,
    swiglu: bool = False,
    out: torch.Tensor | None = None,
    variant: str = "exact",
) -> torch.Tensor:
    """Each expert's first ``masked_m[e]`` rows of ``x`` times its weight; ``expected_m`` changes nothing.

    ``x``: [experts * max_m, K] or [experts, max_m, K]. The result is flat, float64 [experts * max_m, N or N/2]; rows beyond
    a count are never read, keep what ``out`` held, and are NaN without ``out``. The rest is as in ``contiguous``.
    """
    require_layout(weight)
    require_mode(weight, "masked")
    if x.dim() == 3 and x.shape[0] == weight.experts:
        x = x.flatten(0, 1)
    check_x(_MASKED, x, weight)
    check_counts(_MASKED, masked_m, x.shape[0], weight.experts, x.device)
    check_int(_MASKED, "expected_m", expected_m, 1)
    max_m = x.shape[0] // weight.experts
    check_count_values(masked_m, max_m)
    expert = torch.arange(weight.experts, device=x.device)[:, None]
    owners = torch.where(torch.arange(max_m, device=x.device) < masked_m[:, None], expert, -1).flatten()
    return _multiply_owned(_MASKED, x, weight, owners, swiglu, out, variant)


def _multiply_owned(
    asked: str, x: torch.Tensor, weight: PackedW4A16, owners: torch.Tensor, swiglu: bool, out: torch.Tensor | None, variant: str
) -> torch.Tensor:
    """Every row times the weight of its expert in ``owners`` int64 [rows], -1 for a row that is nobody's."""
    out = result_for(asked, x, (x.shape[0], weight.n // 2 if swiglu else weight.n), out)
    for expert in owners.unique().tolist():
        if expert >= 0:
            here = owners == expert
            out[here] = multiply(x[here], weight, expert, swiglu=swiglu, variant=variant)
    return out
