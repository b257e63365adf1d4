"""Cost model behind the tables: an estimate in microseconds, good enough to rank schedules of shapes without a row.

Decode is a stream of weights: a tile costs its bytes at the rate of one SM plus a fixed end (partial sums, store), a
launch costs its complete waves, but never less than all bytes at the rate of the memory, and its last wave. Constants were read off
one H200 (docs/kernels/w4a16_mma.md); only their ratios matter to a ranking.
"""

from __future__ import annotations

import math

from chord_jit.formats.w4a16_layout import BLOCK_BYTES
from chord_jit.schedules.legality import W4A16Problem, mma_shape
from chord_jit.schedules.schedule import Schedule

_MEMORY_BYTES_PER_US = 4.2e6
_SM_BYTES_PER_US = 45e3  # one SM alone: bound by its arithmetic, not by the memory
_TILE_END_US = 0.6
_CUT_US = 2.5
_SHORT_COPY_BYTES = 16384  # below this, bulk copies lose bandwidth


def expected_blocks(problem, bm: int) -> float:
    """Blocks of ``bm`` rows that the expected rows fill, experts without rows left out."""
    rows = problem.expected_rows * problem.experts
    active = problem.experts * (1 - (1 - 1 / problem.experts) ** rows) if problem.experts > 1 else min(rows, 1)
    if active <= 0:
        return 0.0
    per_expert = rows / active
    return active * max(1.0, per_expert / bm + (0.25 if per_expert > bm / 2 else 0.0))


def mma_cost(problem: W4A16Problem, schedule: Schedule) -> float:
    """Estimated microseconds of ``schedule`` on ``problem``."""
    shape = mma_shape(problem, schedule)
    tiles = expected_blocks(problem, schedule.bm) * shape.row_panels / shape.panels
    tile_bytes = shape.panels * shape.k_blocks * BLOCK_BYTES
    copy = min(shape.stage_blocks, shape.k_blocks) * BLOCK_BYTES
    rate = _SM_BYTES_PER_US / schedule.ctas * min(1.0, 0.8 + 0.2 * copy / _SHORT_COPY_BYTES)
    idle = shape.tile_stages * shape.stage_blocks / shape.k_blocks  # warps without a block in the last stage
    tile = tile_bytes / rate * idle + _TILE_END_US
    workers = problem.facts.sms * schedule.ctas
    waves, left = divmod(tiles, workers)
    pieces = range(1, min(schedule.split, shape.tile_stages) + 1)
    tail = min((math.ceil(cut * left / workers) / cut * tile + (_CUT_US if cut > 1 else 0.0) for cut in pieces), default=tile)
    in_flight = min(1.0, schedule.stages * shape.warps * BLOCK_BYTES * schedule.ctas / 100e3)
    stream = tiles * tile_bytes / (_MEMORY_BYTES_PER_US * (0.7 + 0.3 * in_flight)) + waves * _TILE_END_US / 2
    return max(waves * tile, stream - tail / 2) + tail
