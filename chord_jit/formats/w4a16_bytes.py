"""Moves rows of codes and scales into fragment order and back: shifts on packed words and one permuted copy."""

from __future__ import annotations

import torch

from chord_jit.formats.w4a16_layout import CODE_BYTES, UNIT_K

#: Low nibble of every byte of a word.
_LOW_NIBBLES = 0x0F0F0F0F
#: Eight codes of value zero.
ZERO_WORD = 0x88888888 - (1 << 32)


def encode(words: torch.Tensor, scales: torch.Tensor, blocks: torch.Tensor, interleaved: bool) -> None:
    """Writes whole panels.

    ``words`` int32 [sides, rows, K/8]: eight codes each, lowest k in the lowest bits; overwritten. ``scales`` int16
    [sides, rows, K/32]: BF16 bits. ``blocks`` uint8 [panels, kblocks, 4608], a slice of the packed data. Two sides (gate
    and up of the same neurons) when ``interleaved``, else one; K and rows are padded already.
    """
    _swap_nibbles(words)
    _code_view(blocks).copy_(_code_order(words, interleaved))
    _scale_view(blocks).copy_(_scale_order(scales, interleaved))


def decode(blocks: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, interleaved: bool) -> None:
    """The inverse of ``encode``: fills ``words`` and ``scales`` from whole panels."""
    _code_order(words, interleaved).copy_(_code_view(blocks))
    _scale_order(scales, interleaved).copy_(_scale_view(blocks))
    _swap_nibbles(words)


def _swap_nibbles(words: torch.Tensor) -> None:
    """Exchanges the odd codes of each first word (k 0..7 of a k-step) with the even codes of the second (k 8..15).

    After it byte q of the first word holds the even k of lane q's two columns and byte q of the second word the odd k:
    a lane's word is then whole bytes of two rows, which a plain byte copy can order. Its own inverse.
    """
    low, high = words[..., 0::2], words[..., 1::2]
    moved = low >> 4
    moved.bitwise_xor_(high).bitwise_and_(_LOW_NIBBLES)
    high.bitwise_xor_(moved)
    low.bitwise_xor_(moved.bitwise_left_shift_(4))


def _by_unit(rows: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[sides, rows, ...] seen as [panel, unit 8, half 2, lane/4 8, ...]: row and row + 8 of a fragment are the halves."""
    return rows.unflatten(1, (-1, 8, 8)).movedim(0, 2) if interleaved else rows[0].unflatten(0, (-1, 8, 2, 8))


def _code_order(words: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Bytes of nibble-swapped words, seen as [panel, kblock, unit, lane/4, lane%4, k-step, k parity, half]."""
    steps = words.view(torch.uint8).unflatten(-1, (-1, UNIT_K // 16, 2, 4))
    return _by_unit(steps, interleaved).permute(0, 4, 1, 3, 7, 5, 6, 2)


def _code_view(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[..., :CODE_BYTES].unflatten(-1, (8, 8, 4, 4, 2, 2))


def _scale_order(scales: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """BF16 bits seen as [panel, kblock, unit pair, lane/4, unit of the pair, group, half]."""
    return _by_unit(scales.unflatten(-1, (-1, 2)), interleaved).unflatten(1, (4, 2)).permute(0, 5, 1, 4, 2, 6, 3)


def _scale_view(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[..., CODE_BYTES:].view(torch.int16).unflatten(-1, (4, 8, 2, 2, 2))
