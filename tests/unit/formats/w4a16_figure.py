"""The layout of docs/formats.md said once more, one nibble at a time: what the packing is held against."""

from __future__ import annotations

import torch


def literal_pack(codes: list, scales: list, n: int, k: int, interleaved: bool) -> bytes:
    """Bytes of one expert. ``codes``: rows of codes; ``scales``: rows of BF16 bit patterns, one for 32 k."""
    half = n // 2
    panels = (half + 63) // 64 if interleaved else (n + 127) // 128
    kblocks = (k + 63) // 64

    def source_row(unit: int, row: int) -> int | None:
        if interleaved:
            neuron = unit * 8 + row % 8
            if neuron >= half:
                return None
            return neuron if row < 8 else half + neuron
        absolute = unit * 16 + row
        return absolute if absolute < n else None

    def code(unit: int, row: int, column: int) -> int:
        source = source_row(unit, row)
        return 8 if source is None or column >= k else codes[source][column]

    def scale(unit: int, row: int, group: int) -> int:
        source = source_row(unit, row)
        return 0 if source is None or group >= k // 32 else scales[source][group]

    out = bytearray()
    for panel in range(panels):
        for kblock in range(kblocks):
            for unit in range(8):
                for lane in range(32):
                    g, q = lane // 4, lane % 4
                    for step in range(4):
                        column = kblock * 64 + step * 16 + 2 * q
                        where = {"a0": (g, column), "a1": (g + 8, column), "a2": (g, column + 8), "a3": (g + 8, column + 8)}
                        word = 0
                        for position, name in enumerate(("a0", "a2", "a1", "a3")):
                            row, low = where[name]
                            word |= code(panel * 8 + unit, row, low) << (4 * position)
                            word |= code(panel * 8 + unit, row, low + 1) << (16 + 4 * position)
                        out += word.to_bytes(4, "little")
            for pair in range(4):
                for g in range(8):
                    for unit in range(2):
                        for group in range(2):
                            for row in (g, g + 8):
                                out += scale(panel * 8 + pair * 2 + unit, row, kblock * 2 + group).to_bytes(2, "little")
    return bytes(out)


def draw(seed: int, experts: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh codes uint8 [E, N, K] with every value in them and finite, non-zero scales BF16 [E, N, K/32] of both signs."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (experts, n, k), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(experts, n, k // 32, generator=generator) + 0.01).bfloat16()
    scale[torch.rand(scale.shape, generator=generator) < 0.25] *= -1
    return codes, scale


def words_of(codes: torch.Tensor) -> torch.Tensor:
    """compressed-tensors words, nibble i of a word being element 8j + i."""
    rows = []
    for row in codes.reshape(-1, codes.shape[-1]).tolist():
        words = [sum(row[8 * j + i] << (4 * i) for i in range(8)) for j in range(len(row) // 8)]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32).reshape(*codes.shape[:-1], -1)

