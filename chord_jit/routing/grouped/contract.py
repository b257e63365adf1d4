"""What a grouped kernel is told about its rows, and every rule that metadata alone can prove.

Each layout has a test for the warm call (one expression, no words) and a check that says which of its rules is broken.

- ``blocks``: ``m_indices`` int32 [m], the expert of each row, m a multiple of 128. Rows of one expert are adjacent and
  padded to whole blocks of 128; padding is -1.
- ``offsets``: int64 [experts + 1], exact prefix offsets from 0, no padding: expert e owns the rows
  ``[offsets[e], offsets[e + 1])``; rows from ``offsets[-1]`` on are nobody's.
- ``masked``: ``masked_m`` int32 [experts]: expert e owns the first ``masked_m[e]`` of its ``max_m`` rows.
"""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.routing.checks import check_buffer

#: Rows of a block of ``m_indices``: no block holds rows of two experts.
BLOCK = 128
LAYOUTS = ("blocks", "offsets", "masked")


def _fits(tensor: torch.Tensor, dtype: torch.dtype, values: int, index: int) -> bool:
    return (
        isinstance(tensor, torch.Tensor) and tensor.dtype is dtype and tensor.get_device() == index and tensor.dim() == 1
        and tensor.numel() == values and tensor.is_contiguous()
    )  # fmt: skip


def blocks_fit(m_indices: torch.Tensor, rows: int, index: int) -> bool:
    """Whether ``m_indices`` describes ``rows`` activation rows on CUDA device ``index``."""
    return rows % BLOCK == 0 and _fits(m_indices, torch.int32, rows, index)


def offsets_fit(offsets: torch.Tensor, experts: int, index: int) -> bool:
    """Whether ``offsets`` bounds the rows of ``experts`` experts on CUDA device ``index``."""
    return _fits(offsets, torch.int64, experts + 1, index)


def counts_fit(masked_m: torch.Tensor, rows: int, experts: int, index: int) -> bool:
    """Whether ``masked_m`` counts the rows of ``experts`` experts with equal shares of ``rows`` on CUDA device ``index``."""
    return rows % experts == 0 and _fits(masked_m, torch.int32, experts, index)


def check_blocks(asked: str, m_indices: torch.Tensor, rows: int, device: torch.device) -> None:
    """Say why ``blocks_fit`` does not hold: ``InputTypeError`` or ``InputError``."""
    check_buffer(asked, "m_indices", m_indices)
    if rows % BLOCK:
        raise InputError(
            asked, "the rows of x must be a multiple of 128: each expert's are padded to whole blocks", {"rows": rows},
            "pad each expert's rows to 128 with m_indices of -1, or pass offsets=, which needs no padding",
        )
    if m_indices.numel() != rows:
        raise InputError(
            asked, "m_indices must name an expert for each row of x", {"m_indices": m_indices.numel(), "rows": rows},
            "pass one id a row, -1 on padding",
        )
    _check_device(asked, "m_indices", m_indices, device)


def check_offsets(asked: str, offsets: torch.Tensor, experts: int, device: torch.device) -> None:
    """Say why ``offsets_fit`` does not hold: ``InputTypeError`` or ``InputError``."""
    check_buffer(asked, "offsets", offsets, torch.int64)
    if offsets.numel() != experts + 1:
        raise InputError(
            asked, "offsets must hold one more entry than the weight has experts", {"offsets": offsets.numel(), "experts": experts},
            "pass the prefix sums of the rows per expert, from 0 on",
        )
    _check_device(asked, "offsets", offsets, device)


def check_counts(asked: str, masked_m: torch.Tensor, rows: int, experts: int, device: torch.device) -> None:
    """Say why ``counts_fit`` does not hold: ``InputTypeError`` or ``InputError``."""
    check_buffer(asked, "masked_m", masked_m)
    if masked_m.numel() != experts:
        raise InputError(
            asked, "masked_m must count the rows of each expert of the weight", {"masked_m": masked_m.numel(), "experts": experts},
            "pass one count an expert, 0 where it has no rows",
        )
    if rows % experts:
        raise InputError(
            asked, "x must hold equally many rows for each expert", {"rows": rows, "experts": experts}, "pass x as [experts, max_m, K]"
        )
    _check_device(asked, "masked_m", masked_m, device)


def _check_device(asked: str, name: str, tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise InputError(
            asked, f"{name} and x must lie on one device", {name: tensor.device, "x": device}, f"move {name} to the device of x"
        )
