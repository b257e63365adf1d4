"""Grouped routing: rows that lie together by expert, in three layouts. ``docs/routing.md`` states the contract."""

from chord_jit.routing.grouped.build import blocks_of, offsets_of
from chord_jit.routing.grouped.contract import (
    BLOCK,
    LAYOUTS,
    blocks_fit,
    check_blocks,
    check_counts,
    check_offsets,
    counts_fit,
    offsets_fit,
)
from chord_jit.routing.grouped.values import check_block_values, check_count_values, check_offset_values

__all__ = [
    "BLOCK", "LAYOUTS", "blocks_fit", "blocks_of", "check_block_values", "check_blocks", "check_count_values", "check_counts",
    "check_offset_values", "check_offsets", "counts_fit", "offsets_fit", "offsets_of",
]  # fmt: skip
