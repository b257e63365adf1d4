"""Indexed routing: blocks of routed ids, one expert a block. ``docs/routing.md`` states the contract."""

from chord_jit.routing.indexed.align import align_blocks
from chord_jit.routing.indexed.contract import IndexedRouting, check_trusted
from chord_jit.routing.indexed.values import check_values

__all__ = ["IndexedRouting", "align_blocks", "check_trusted", "check_values"]
