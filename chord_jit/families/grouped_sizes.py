"""Rows per expert that schedules are chosen for: few enough that warm-up can prepare for every one of them.

A call's expected rows are rounded up to a power of two, within the sizes that its layout is made for. So a prefill whose row
count changes at every step meets no kernel that warm-up has not built, and a deployment of Kimi K2 needs 25 of them at most.
"""

from __future__ import annotations

import math

#: Least and most rows per expert that schedules tell apart, by layout. Blocks are padded to 128 rows: few rows gain nothing.
#: From 512 rows on every tile is full, so more rows want no other schedule; masked rows are decode's, where 256 are many.
_RANGES = {"masked": (1, 256), "offsets": (1, 512), "blocks": (64, 512)}


def size_for(layout: str, rows: float) -> int:
    """The size that stands for ``rows`` rows per expert."""
    least, most = _RANGES[layout]
    whole = min(max(math.ceil(rows), least), most)
    return 1 << (whole - 1).bit_length()


def sizes(layout: str) -> list[int]:
    """Every size of ``layout``, ascending."""
    least, most = _RANGES[layout]
    return sorted({size_for(layout, rows) for rows in range(least, most + 1)})
