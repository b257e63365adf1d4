"""Rows copied to where they are wanted, with SiLU(gate) * up on the way if asked."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.rows import kernels
from chord_jit.rows.checks import check_matrix, check_values

_ASKED = "move rows"


def move_rows(
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    activate: bool = False,
    destinations: torch.Tensor | None = None,
    limit: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write rows of ``x`` to rows of ``out``; returns ``out``.

    ``x``: BF16 [R, C]. ``out``: BF16 [S, C], or [S, C / 2] with ``activate``, which writes SiLU(x[:, :C/2]) * x[:, C/2:], in FP32,
    rounded once. Both contiguous, 16-byte aligned, apart in memory; the columns of ``out`` a multiple of 8.
    ``destinations``: int32 [R] or [R, d]: row r goes to each of its d rows of ``out``; a negative one, or one past the end, is
    dropped. No row may be named twice. None: row r goes to row r.
    ``limit``: int64 [1]: rows of ``out`` from here on are not written. ``counts``: int32 [E], E dividing R: ``x`` is E blocks of
    R / E rows, of which the first ``counts[e]`` are moved. Both lie on the device of ``x`` and are not read by the host.

    Rows that are not moved are not read, and rows that nobody names keep what they hold. Runs on the current stream; can be
    captured. On the CPU only with ``CHORD_BACKEND=reference``. Raises ``InputError`` / ``InputTypeError`` before any launch,
    ``CaptureError`` for a cold call under capture.
    """
    check_matrix(_ASKED, "x", x)
    check_matrix(_ASKED, "out", out, x)
    rows, columns = x.shape[0], out.shape[1]
    if x.shape[1] != columns * (2 if activate else 1):
        raise InputError(
            _ASKED, "x must be as wide as out, twice with activate", {"x": list(x.shape), "out": list(out.shape), "activate": activate},
            "allocate out for these columns",
        )
    each, blocks = 1, 1
    if destinations is not None:
        several = isinstance(destinations, torch.Tensor) and destinations.dim() == 2
        each = destinations.shape[1] if several else 1
        check_values(_ASKED, "destinations", destinations, (torch.int32,), (rows, each) if several else (rows,), x)
    if limit is not None:
        check_values(_ASKED, "limit", limit, (torch.int64,), (1,), x)
    if counts is not None:
        blocks = counts.numel() if isinstance(counts, torch.Tensor) else 0
        check_values(_ASKED, "counts", counts, (torch.int32,), (blocks,), x)
        if blocks < 1 or rows % blocks:
            raise InputError(_ASKED, "counts must divide the rows of x", {"rows": rows, "counts": blocks}, "pass one count for each block")
    if not rows or not columns:
        return out
    if not x.is_cuda:
        return _on_host(x, out, activate, destinations, limit, counts)
    kernels.enqueue(
        kernels.MOVE, x.get_device(), x.data_ptr(), out.data_ptr(), *map(kernels.address, (destinations, limit, counts)),
        rows, out.shape[0], columns // 8, each, rows // blocks, activate,
    )  # fmt: skip
    return out


def _on_host(
    x: torch.Tensor, out: torch.Tensor, activate: bool, destinations: torch.Tensor | None, limit: torch.Tensor | None,
    counts: torch.Tensor | None,
) -> torch.Tensor:
    rows = torch.arange(x.shape[0])
    to = rows.view(-1, 1) if destinations is None else destinations.long().view(x.shape[0], destinations.numel() // x.shape[0])
    wanted = (to >= 0) & (to < (out.shape[0] if limit is None else min(int(limit), out.shape[0])))
    if counts is not None:
        block = x.shape[0] // counts.numel()
        wanted &= (rows % block < counts.repeat_interleave(block)).view(-1, 1)
    source, place = wanted.nonzero(as_tuple=True)
    values = x[source]
    if activate:
        gate, up = values.float().chunk(2, 1)
        values = (gate * torch.sigmoid(gate) * up).bfloat16()
    out[to[source, place]] = values
    return out
