"""Packs INT4 group-32 weights once for every W4A16 kernel, and unpacks them again, bit for bit.

Sources are logical codes or the ``weight_packed`` words of a compressed-tensors checkpoint (format ``pack-quantized``);
a weight is ``(code - 8) * scale``. ``docs/formats.md`` describes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from chord_jit.errors import InputError
from chord_jit.formats.w4a16_bytes import ZERO_WORD, decode, encode
from chord_jit.formats.w4a16_layout import (
    BLOCK_BYTES,
    GROUP,
    LAYOUT_VERSION,
    PANEL,
    UNIT_K,
    UNIT_ROWS,
    PackedW4A16,
    check_mode,
    data_shape,
    require_layout,
    require_mode,
)
from chord_jit.formats.w4a16_sides import Sides, read_sides

__all__ = [
    "BLOCK_BYTES", "GROUP", "LAYOUT_VERSION", "PANEL", "UNIT_K", "UNIT_ROWS", "PackedW4A16",
    "allocate", "pack_expert", "pack_w4a16", "pack_w4a16_grouped", "require_layout", "require_mode", "unpack_expert", "unpack_w4a16",
]

#: Packed bytes handled at once: enough to keep a GPU busy, little enough to stay in a CPU's caches.
_CHUNK = 4 << 20


def pack_w4a16(
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    interleave: bool = False,
    up: torch.Tensor | None = None,
    up_scale: torch.Tensor | None = None,
) -> PackedW4A16:
    """Packs one weight of all local experts.

    ``weight``: codes [E, N, K] of any integer dtype, 0..15, or compressed-tensors words int32 [E, N, K/8] (told apart
    by the scale's K). ``scale``: BF16 [E, N, K/32]. All on one CPU or CUDA device, where the result lies too; any
    strides. A gate/up weight comes as one tensor, gate rows then up rows, or as ``weight`` (gate) and ``up``.
    ``interleave`` packs gate and up of a neuron into one lane, which lets a kernel fuse SwiGLU.

    N (gate and up together) must be a multiple of 8, K of 32; rows are padded to 128 (gate and up each to 64 when
    interleaved), K to 64, with code 8 and scale zero. Scratch is a few MiB beyond source and result, whatever E is.

    Raises ``InputTypeError`` for dtypes; ``InputError`` for shapes, devices, codes outside 0..15, non-finite scales.
    Everything is checked before the result is allocated; the value checks wait for the device once.
    """
    sides = read_sides(weight, scale, interleave, up, up_scale)
    packed = allocate(sides.experts, sides.n, sides.k, interleave, weight.device)
    for expert in range(sides.experts):
        _write(packed, expert, sides, expert)
    return packed


def pack_w4a16_grouped(
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    mode: str,
    interleave: bool = False,
    up: torch.Tensor | None = None,
    up_scale: torch.Tensor | None = None,
) -> PackedW4A16:
    """``pack_w4a16`` for one grouped call alone: the same bytes, but calls of another mode refuse the result by name.

    ``mode``: ``contiguous`` or ``masked``. A weight of ``pack_w4a16`` serves both, and ``indexed`` too. Raises as
    ``pack_w4a16`` does, and ``InputError`` for another mode, before anything is packed.
    """
    check_mode("pack a grouped W4A16 weight", mode)
    return replace(pack_w4a16(weight, scale, interleave=interleave, up=up, up_scale=up_scale), mode=mode)


def allocate(experts: int, n: int, k: int, interleaved: bool, device: torch.device | str) -> PackedW4A16:
    """A packed weight whose bytes are not written yet: fill every expert with ``pack_expert``."""
    shape = data_shape(experts, n, k, interleaved)
    return PackedW4A16(torch.empty(shape, dtype=torch.uint8, device=device), n, k, experts, interleaved)


def pack_expert(
    packed: PackedW4A16,
    expert: int,
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    up: torch.Tensor | None = None,
    up_scale: torch.Tensor | None = None,
) -> None:
    """Packs one expert into its place of ``packed``: tensors as ``pack_w4a16`` takes them, with E = 1.

    Raises as ``pack_w4a16`` does, and ``InputError`` when shape or device are not those of ``packed``.
    """
    sides = read_sides(weight, scale, packed.interleaved, up, up_scale)
    given = (sides.experts, sides.n, sides.k, str(weight.device))
    wanted = (1, packed.n, packed.k, str(packed.device))
    if given != wanted or not 0 <= expert < packed.experts:
        raise InputError(
            f"pack expert {expert} of a W4A16 weight", "its (E, N, K, device) must fit the packed weight",
            {"given": given, "wanted": wanted, "experts": packed.experts}, "allocate for this shape, expert count and device",
        )
    _write(packed, expert, sides, 0)


def unpack_w4a16(packed: PackedW4A16) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [E, N, K] and BF16 scales [E, N, K/32] in logical order (gate rows, then up rows), bit for bit.

    Raises ``InputError`` for another layout version.
    """
    require_layout(packed)
    codes = torch.empty(packed.experts, packed.n, packed.k, dtype=torch.uint8, device=packed.device)
    scale = torch.empty(packed.experts, packed.n, packed.k // GROUP, dtype=torch.bfloat16, device=packed.device)
    for expert in range(packed.experts):
        _read(packed, expert, codes[expert], scale[expert])
    return codes, scale


def unpack_expert(packed: PackedW4A16, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One expert of ``unpack_w4a16``: codes uint8 [N, K], scales BF16 [N, K/32]."""
    require_layout(packed)
    codes = torch.empty(packed.n, packed.k, dtype=torch.uint8, device=packed.device)
    scale = torch.empty(packed.n, packed.k // GROUP, dtype=torch.bfloat16, device=packed.device)
    _read(packed, expert, codes, scale)
    return codes, scale


def _chunks(packed: PackedW4A16) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
    """First and last panel of each chunk, and the [sides, rows, padded K] it holds: half an expert at most, as a chunk's temporaries
    take nearly one and a half times its own bytes.
    """
    sides = 1 + packed.interleaved
    step = max(1, min(_CHUNK // (packed.kblocks * BLOCK_BYTES), packed.panels // 2))
    for first in range(0, packed.panels, step):
        last = min(first + step, packed.panels)
        yield first, last, (sides, (last - first) * PANEL // sides, packed.kblocks * UNIT_K)


def _write(packed: PackedW4A16, expert: int, sides: Sides, source_expert: int) -> None:
    for first, last, shape in _chunks(packed):
        _write_chunk(packed, expert, sides, source_expert, first, last, shape)


def _write_chunk(
    packed: PackedW4A16, expert: int, sides: Sides, source_expert: int, first: int, last: int, shape: tuple[int, int, int]
) -> None:
    """A call of its own, so that its temporaries are gone before the next chunk's are made."""
    count, rows, k = shape
    words = torch.full((count, rows, k // 8), ZERO_WORD, dtype=torch.int32, device=packed.device)
    scales = torch.zeros(count, rows, k // GROUP, dtype=torch.int16, device=packed.device)
    sides.put(source_expert, first * PANEL // count, words, scales)
    encode(words, scales, packed.data[expert, first:last], packed.interleaved)


def _read(packed: PackedW4A16, expert: int, codes: torch.Tensor, scale: torch.Tensor) -> None:
    for first, last, (count, rows, k) in _chunks(packed):
        words = torch.empty(count, rows, k // 8, dtype=torch.int32, device=packed.device)
        scales = torch.empty(count, rows, k // GROUP, dtype=torch.int16, device=packed.device)
        decode(packed.data[expert, first:last], words, scales, packed.interleaved)
        per_side, base = packed.n // count, first * PANEL // count
        valid = min(rows, per_side - base)
        pairs = words.view(torch.uint8)[..., : packed.k // 2]
        for side in range(count):
            here = slice(side * per_side + base, side * per_side + base + valid)
            codes[here, 0::2] = pairs[side, :valid] & 15
            codes[here, 1::2] = pairs[side, :valid] >> 4
            scale[here] = scales[side, :valid, : packed.k // GROUP].view(torch.bfloat16)
