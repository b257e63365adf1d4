"""Cost model behind the tables: an estimate in microseconds, good enough to rank schedules of shapes without a row.

Decode is a stream of weights: a tile costs its bytes at the rate of one SM plus a fixed end (partial sums, store), a
launch costs its waves of tiles, but never less than all bytes at the rate of the memory. Constants were read off
one H200 (docs/kernels/w4a16_mma.md); only their ratios matter to a ranking.
"""

from __future__ import annotations

import math
from functools import lru_cache

from chord_jit.formats.w4a16_layout import BLOCK_BYTES
from chord_jit.schedules import resident, wgmma
from chord_jit.schedules.legality import W4A16Problem, mma_shape
from chord_jit.schedules.schedule import Schedule

_MEMORY_BYTES_PER_US = 4.2e6
_SM_BYTES_PER_US = 45e3  # one SM alone: bound by its arithmetic, not by the memory
_TILE_END_US = 0.6
_EXCHANGE_US = 1.5
_IN_FLIGHT_BYTES = 105e3  # of one SM, to cover the memory's latency
_CYCLES_PER_US = 1400  # an SM at the power limit
_LEAST_CYCLES, _PRODUCT_CYCLES, _ROW_CYCLES = 30, 14, 0.46  # of one WGMMA with A in registers, by its rows
_WGMMA_END_US = 1.5
_PANEL_END_US = 0.9  # of a tile of one warpgroup and one panel
_MANY_ROWS = 4096  # from here on an expert's last tile counts for nothing
_SHORT_COPY_BYTES = 16384  # below this, bulk copies lose bandwidth


@lru_cache(maxsize=4096)
def poisson_above(mean: float, count: int) -> float:
    """Probability that an expert gets more than ``count`` rows when rows fall on experts at random."""
    if mean > 200:
        return float(mean > count)
    term = total = math.exp(-mean)
    for rows in range(1, count + 1):
        term *= mean / rows
        total += term
    return max(0.0, 1.0 - total)


@lru_cache(maxsize=4096)
def expected_blocks(mean: float, bm: int) -> float:
    """Blocks of ``bm`` rows of one expert with ``mean`` rows: block j exists when it gets more than j * bm rows."""
    if mean > 200:
        return float(math.ceil(mean / bm))
    return sum(poisson_above(mean, block * bm) for block in range(int(mean / bm) + 8))


def mma_cost(problem: W4A16Problem, schedule: Schedule) -> float:
    """Estimated microseconds of ``schedule`` on ``problem``."""
    shape = mma_shape(problem, schedule)
    tiles = problem.experts * expected_blocks(problem.expected_rows, schedule.bm) * shape.row_panels / shape.panels
    tile_bytes = shape.panels * shape.k_blocks * BLOCK_BYTES
    share = -(-shape.tile_stages // schedule.split) * shape.warps * BLOCK_BYTES  # of one CTA; idle warps of a last stage count
    arithmetic = 1.0 + 0.3 * (schedule.bm == 16) * poisson_above(problem.expected_rows, 8)
    part = share / (_SM_BYTES_PER_US * shape.warps / 8) * arithmetic + (_EXCHANGE_US if schedule.split > 1 else 0.0)
    workers = problem.facts.sms * schedule.ctas // schedule.split
    copy = min(shape.stage_blocks, shape.k_blocks) * BLOCK_BYTES
    rate = _MEMORY_BYTES_PER_US * min(1.0, 0.85 + 0.15 * copy / _SHORT_COPY_BYTES)
    in_flight = min(1.0, schedule.stages * shape.warps * BLOCK_BYTES * schedule.ctas / _IN_FLIGHT_BYTES)
    waves = tiles / workers
    stream = tiles * tile_bytes / (rate * in_flight)
    end = _TILE_END_US + (_EXCHANGE_US if schedule.split > 1 else 0.0)
    return max(math.ceil(waves) * part, stream + part / 4) + end * (1 + waves / 4)


@lru_cache(maxsize=4096)
def expected_widths(mean: float, bm: int, widths: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Instruction width and expected number of the tiles of one expert with ``mean`` rows that fall on it at random.

    Tiles are filled one after the other, so all but an expert's last hold ``bm`` rows.
    """
    if mean > _MANY_ROWS:
        return ((bm, mean / bm),)
    reach = 4 * math.sqrt(mean) + 4
    counts = range(max(1, int(mean - reach)), int(mean + reach) + 1)
    chances = [math.exp(rows * math.log(mean) - mean - math.lgamma(rows + 1)) for rows in counts]
    found = dict.fromkeys(widths, 0.0)
    for rows, chance in zip(counts, chances, strict=True):
        found[bm] += rows // bm * chance
        if rows % bm:
            found[next(width for width in widths if width >= rows % bm)] += chance
    return tuple(found.items())


def _widths(problem: W4A16Problem, schedule: Schedule, widths: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Instruction width and number of the tiles of one expert. Grouped rows are spread evenly over their tiles."""
    if problem.layout == "indexed":
        return expected_widths(max(problem.expected_rows, 1e-6), schedule.bm, widths)
    blocks = max(expected_blocks(problem.expected_rows, schedule.bm), 1e-6)
    height = min(schedule.bm, math.ceil(problem.expected_rows / blocks))
    return ((next(width for width in widths if width >= height), blocks),)


def wgmma_cost(problem: W4A16Problem, schedule: Schedule) -> float:
    """Estimated microseconds of ``schedule`` on ``problem``: tensor cores or the memory, whichever is slower."""
    sizes = wgmma.shape(problem, schedule)
    products = 8 * sizes.panels * sizes.k_blocks  # m64 x width x k16, of one tile
    tiles = work = 0.0
    for width, count in _widths(problem, schedule, sizes.widths):
        cycles = schedule.ctas * products * max(_LEAST_CYCLES, _PRODUCT_CYCLES + _ROW_CYCLES * width)
        tiles += count
        work += count * (cycles / _CYCLES_PER_US + _WGMMA_END_US)
    tiles *= problem.experts * sizes.row_panels / sizes.panels
    waves = tiles / (problem.facts.sms * schedule.ctas)
    partly = waves if schedule.split == 2 and waves >= 1 else math.ceil(waves)
    tile = work * problem.experts * sizes.row_panels / sizes.panels / tiles
    in_flight = min(1.0, schedule.ctas * schedule.stages * sizes.panels * sizes.stage_blocks * BLOCK_BYTES / _IN_FLIGHT_BYTES)
    weights = problem.experts * sizes.row_panels * sizes.k_blocks * BLOCK_BYTES
    output = problem.experts * problem.expected_rows * problem.n * (1 if problem.swiglu else 2)
    moved = weights / in_flight + output
    return max(partly * tile, moved / _MEMORY_BYTES_PER_US) + (_EXCHANGE_US if schedule.split == 2 else 0.0)


def resident_cost(problem: W4A16Problem, schedule: Schedule) -> float:
    """Estimated microseconds of ``schedule`` on ``problem``: products of one warpgroup hide the end of the other's tile."""
    sizes = resident.shape(problem, schedule)
    steps = 8 * sizes.k_blocks  # m64 x width x k16, of one panel
    units = work = 0.0
    for width, count in _widths(problem, schedule, sizes.widths):
        products = steps * max(_LEAST_CYCLES, _PRODUCT_CYCLES + _ROW_CYCLES * width) / _CYCLES_PER_US
        panel = max(products, (products + _PANEL_END_US) / 2)
        units += count
        work += count * (sizes.row_panels / sizes.units * panel + _WGMMA_END_US)
    waves = units * problem.experts * sizes.units / problem.facts.sms
    unit = work / units
    output = problem.experts * problem.expected_rows * problem.n * (1 if problem.swiglu else 2)
    moved = problem.experts * sizes.row_panels * sizes.k_blocks * BLOCK_BYTES + output
    return max(math.ceil(waves) * unit, moved / _MEMORY_BYTES_PER_US)


_COSTS = {"w4a16_mma": mma_cost, "w4a16_wgmma": wgmma_cost, "w4a16_resident": resident_cost}


def estimate(problem: W4A16Problem, schedule: Schedule) -> float:
    """Estimated microseconds, by the model of the schedule's kernel."""
    return _COSTS[schedule.kernel](problem, schedule)
