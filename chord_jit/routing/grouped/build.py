"""Layouts from rows per expert, in plain torch, on the CPU or on a GPU."""

from __future__ import annotations

import torch

from chord_jit.routing.grouped.contract import BLOCK


def offsets_of(counts: torch.Tensor) -> torch.Tensor:
    """Exact prefix offsets int64 [experts + 1] of ``counts`` integers [experts], on their device. Never synchronises."""
    return torch.nn.functional.pad(torch.cumsum(counts, 0, dtype=torch.int64), (1, 0))


def blocks_of(counts: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """``m_indices`` int32 of ``counts`` integers [experts], each expert padded to 128 rows, on their device.

    ``rows``: length of the result, a multiple of 128 that holds all of them; the rest is padding. Without it the length
    is the least, which reads the counts back.
    """
    padded = (counts.long() + BLOCK - 1) // BLOCK * BLOCK
    ends = torch.cumsum(padded, 0)
    row = torch.arange(int(ends[-1]) if rows is None else rows, device=counts.device)
    # Rows past the last expert's end would be looked up as an expert that does not exist; there they lie past its count.
    expert = torch.searchsorted(ends, row, right=True).clamp_(max=counts.numel() - 1)
    within = row - (ends - padded)[expert]
    return torch.where(within < counts[expert], expert, -1).to(torch.int32)
