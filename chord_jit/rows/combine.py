"""The rows of each token's routed ids added up in the order of the ids."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.rows import kernels
from chord_jit.rows.checks import check_matrix, check_values

_ASKED = "combine the rows of routed ids"


def combine_rows(
    x: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    *,
    weights: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """``out[t] = addend[t] + sum over j of weights[t, j] * x[rows[t, j]]``, j ascending, in FP32, rounded once; returns ``out``.

    ``x``: BF16 [any, H]. ``rows``: int32 [M, top_k], rows of ``x``, or negative for an id without one, which adds nothing.
    ``weights``: FP32 [M, top_k]; None: every row counts once. ``addend``: BF16 [M, H], which may be ``out``. ``out``: BF16
    [M, H], apart from ``x`` in memory. All contiguous, matrices 16-byte aligned, H a multiple of 8.

    Rows of ``x`` that nobody names are not read. Runs on the current stream; can be captured; the same inputs give the same
    bits. On the CPU only with ``CHORD_BACKEND=reference``. Raises ``InputError`` / ``InputTypeError`` before any launch,
    ``CaptureError`` for a cold call under capture.
    """
    check_matrix(_ASKED, "x", x)
    check_matrix(_ASKED, "out", out, x)
    tokens, hidden = out.shape
    if x.shape[1] != hidden:
        raise InputError(
            _ASKED, "x must be as wide as out", {"x": list(x.shape), "out": list(out.shape)}, "allocate out for these columns"
        )
    top_k = rows.shape[-1] if isinstance(rows, torch.Tensor) and rows.dim() == 2 else 1
    check_values(_ASKED, "rows", rows, (torch.int32,), (tokens, top_k), x)
    if weights is not None:
        check_values(_ASKED, "weights", weights, (torch.float32,), (tokens, top_k), x)
    if addend is not None:
        check_matrix(_ASKED, "addend", addend, x, shape=(tokens, hidden))
    if not tokens or not hidden:
        return out
    if not x.is_cuda:
        return _on_host(x, rows, out, weights, addend)
    kernels.enqueue(
        kernels.COMBINE, x.get_device(), *map(kernels.address, (x, rows, weights, addend, out)), tokens, hidden // 8, top_k,
    )
    return out


def _on_host(
    x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, weights: torch.Tensor | None, addend: torch.Tensor | None
) -> torch.Tensor:
    total = torch.zeros(out.shape) if addend is None else addend.float()
    for j in range(rows.shape[1]):
        known = rows[:, j] >= 0
        value = x[rows[known, j].long()].float()
        total[known] += value if weights is None else weights[known, j, None] * value
    return out.copy_(total)
