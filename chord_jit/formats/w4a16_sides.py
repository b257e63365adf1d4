"""Gate and up, separate or concatenated, as the one or two streams of rows that a packed weight is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.w4a16_layout import GROUP
from chord_jit.formats.w4a16_source import ASKED, Source, read


@dataclass(frozen=True)
class Sides:
    """One stream of rows, or two of equal length (gate, up) to be interleaved; each stream is its parts, one after another."""

    streams: tuple[tuple[Source, ...], ...]

    @property
    def experts(self) -> int:
        return self.streams[0][0].experts

    @property
    def n(self) -> int:
        """Logical rows of one expert, all streams together."""
        return sum(part.n for parts in self.streams for part in parts)

    @property
    def k(self) -> int:
        return self.streams[0][0].k

    def put(self, expert: int, base: int, words: torch.Tensor, scales: torch.Tensor) -> None:
        """Copies rows ``base`` onwards of each stream into ``words`` int32 [streams, rows, >= K/8] and ``scales``
        int16 [streams, rows, >= K/32]; what lies past the last row or past K keeps its value.
        """
        rows = words.shape[1]
        for side, parts in enumerate(self.streams):
            offset = 0
            for part in parts:
                start, stop = max(base, offset), min(base + rows, offset + part.n)
                if start < stop:
                    here = slice(start - base, stop - base)
                    part.rows(start - offset, stop - offset).put(
                        expert, words[side, here, : self.k // 8], scales[side, here, : self.k // GROUP]
                    )
                offset += part.n


def read_sides(
    weight: torch.Tensor, scale: torch.Tensor, interleave: bool, up: torch.Tensor | None, up_scale: torch.Tensor | None
) -> Sides:
    """Checks all that is handed over. Raises ``InputTypeError`` or ``InputError``."""
    if (up is None) != (up_scale is None):
        given = {"up": up is not None, "up_scale": up_scale is not None}
        raise InputTypeError(ASKED, "up and up_scale must come together", given, "pass both, or gate and up in one tensor")
    parts = [read(weight, scale)] if up is None else [read(weight, scale, "gate"), read(up, up_scale, "up")]
    shapes = {(part.experts, part.n, part.k, str(part.scale.device)) for part in parts}
    if len(shapes) > 1:
        raise InputError(
            ASKED, "gate and up must have one shape and device", {"(E, N, K, device)": sorted(shapes)}, "pass the two halves of one layer"
        )
    n = sum(part.n for part in parts)
    if n % 8:
        raise InputError(ASKED, "N, gate and up together, must be a multiple of 8", {"N": n}, "pad the weight with rows of code 8")
    if not interleave:
        return Sides((tuple(parts),))
    if up is None:
        parts = [parts[0].rows(0, n // 2), parts[0].rows(n // 2, n)]
    return Sides(tuple((part,) for part in parts))
