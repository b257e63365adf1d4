"""Cost model behind the tables: an estimate in microseconds, good enough to rank schedules of shapes without a row.

Decode is a stream of weights: a tile costs its bytes at the rate of one SM plus a fixed end (partial sums, store), a
launch costs its waves of tiles, but never less than all bytes at the rate of the memory. Constants were read off
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
_EXCHANGE_US = 1.5
_IN_FLIGHT_BYTES = 105e3  # of one SM, to cover the memory's latency
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
    share = -(-shape.tile_stages // schedule.split) * shape.warps * BLOCK_BYTES  # of one CTA; idle warps of a last stage count
    arithmetic = 1.0 if schedule.bm == 8 or problem.expected_rows < 6 else 1.3
    part = share / (_SM_BYTES_PER_US * shape.warps / 8) * arithmetic + (_EXCHANGE_US if schedule.split > 1 else 0.0)
    workers = problem.facts.sms * schedule.ctas // schedule.split
    copy = min(shape.stage_blocks, shape.k_blocks) * BLOCK_BYTES
    rate = _MEMORY_BYTES_PER_US * min(1.0, 0.85 + 0.15 * copy / _SHORT_COPY_BYTES)
    in_flight = min(1.0, schedule.stages * shape.warps * BLOCK_BYTES * schedule.ctas / _IN_FLIGHT_BYTES)
    waves = tiles / workers
    stream = tiles * tile_bytes / (rate * in_flight)
    end = _TILE_END_US + (_EXCHANGE_US if schedule.split > 1 else 0.0)
    return max(math.ceil(waves) * part, stream + part / 4) + end * (1 + waves / 4)
