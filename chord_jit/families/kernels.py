"""The kernels that families share: which schedules are worth timing, what a schedule is compiled as, and how it is loaded.

A problem of any family tells them ``layout`` (indexed, masked, offsets or blocks), ``n``, ``k``, ``interleaved``, ``swiglu``,
``weighted`` and ``dequant``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

from chord_jit.formats.w4a16_layout import PANEL, UNIT_K
from chord_jit.jit import engine, slots
from chord_jit.jit.launch import Launch, resident_clusters
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import cost, legality, resident, resolver, wgmma
from chord_jit.schedules.schedule import Schedule

_DEQUANTS = {"subnormal": "kSubnormal", "magic": "kMagic", "scaled": "kScaled"}
_SOURCES = {"indexed": "kIndexed", "masked": "kMasked", "offsets": "kOffsets", "blocks": "kBlocks"}

_MMA_TILES = ((128, 512), (128, 256), (256, 256), (256, 128), (512, 128), (512, 64))

#: Output tile and stage of w4a16_wgmma by token tile: what was worth timing (docs/lab.md).
_WGMMA_TILES = {
    16: ((512, 128), (256, 256), (256, 128)), 32: ((512, 128), (256, 128), (128, 64)), 48: ((512, 128), (256, 128)),
    64: ((256, 128), (256, 64), (128, 128), (128, 64)), 96: ((256, 128), (256, 64)), 128: ((256, 128), (256, 64), (128, 128), (128, 64)),
    160: ((256, 128), (256, 64)), 192: ((128, 128), (128, 64)), 256: ((128, 64),),
}  # fmt: skip

#: Legal forms of w4a16_wgmma whose products the assembler serialises (C7512): layout, BM, BN, BK, CTAS. None is offered.
_SERIALISED = {("indexed", 16, 256, 256, 2)}
#: Blocks of K that w4a16_resident is offered from. Of one block the assembler serialises the products (C7511, C7517, C7519).
_LEAST_RESIDENT_BLOCKS = 2


def mma_schedules(problem: object, splits: tuple[int, ...]) -> Iterator[Schedule]:
    """Legal ``w4a16_mma`` schedules without spills, about two hundred at most; those that won elsewhere come first."""
    for split, bm, (bn, bk), ctas, stages in product(splits, (16, 8), _MMA_TILES, (1, 2), (3, 4, 6, 2)):
        schedule = Schedule("w4a16_mma", bm, bn, bk, stages, split=split, ctas=ctas)
        if not legality.violations(problem, schedule) and not mma_spills(problem, schedule):
            yield schedule


def wgmma_schedules(problem: object) -> Iterator[Schedule]:
    """Legal ``w4a16_wgmma`` schedules; those that won elsewhere come first. Multicast (CN = 2) gained nothing on the H200 and
    is left to overrides, and so are more than 128 gathered rows."""
    for bm, tiles in _WGMMA_TILES.items():
        if problem.layout == "indexed" and bm > 128:
            break
        for (bn, bk), ctas, stages, split in product(tiles, (1, 2), (4, 5, 3, 6, 2), (2, 1)):
            schedule = Schedule("w4a16_wgmma", bm, bn, bk, stages, split=split, ctas=ctas)
            if (problem.layout, bm, bn, bk, ctas) not in _SERIALISED and not legality.violations(problem, schedule):
                yield schedule


def by_size(
    problem: object, sizes: Iterable[float], measured: Callable[[object], Schedule | None],
    candidates: Callable[[object], Sequence[Schedule]],
) -> dict[float, Schedule]:
    """The schedule of ``problem`` at each of ``sizes``, ascending rows per expert, where nothing is overridden.

    ``measured``: the table's. Sizes without a row share a schedule with their neighbours where the cost model allows.
    """

    def good(one: object) -> Sequence[Schedule]:
        row = measured(one)
        return [row] if row and not legality.violations(one, row) else resolver.as_cheap(one, candidates(one), cost.estimate)

    asked = {rows: replace(problem, expected_rows=rows) for rows in sizes}
    found = resolver.shared(asked.values(), good)
    return {rows: found[one] for rows, one in asked.items()}


def resident_schedules(problem: object) -> Iterator[Schedule]:
    """Legal ``w4a16_resident`` schedules: K short enough that two tiles of rows fit in shared memory whole, and longer than a block."""
    blocks = -(-problem.k // UNIT_K)
    for bm, stages in product((128, 96, 64, 48, 32), (4, 5, 3, 6, 2)):
        schedule = Schedule("w4a16_resident", bm, PANEL, blocks * UNIT_K, stages)
        if blocks >= _LEAST_RESIDENT_BLOCKS and not legality.violations(problem, schedule):
            yield schedule


def mma_spills(problem: object, schedule: Schedule) -> bool:
    """Whether the compiler gives a legal ``w4a16_mma`` schedule local memory, which no kernel that is chosen may have.

    Read off NVRTC 13.0 (``tests/unit/kernels``): eight resident consumer warps an SM run out of registers with the
    dequantisation used off Hopper, with 16-row tiles whose last stage is partly empty, and with routing weights on short
    tiles of plain weights.
    """
    shape = legality.mma_shape(problem, schedule)
    if shape.warps * schedule.ctas < 8:
        return False
    if problem.facts.arch != "sm_90a":
        return True
    partly_empty = shape.tile_stages > 1 and shape.k_blocks % shape.stage_blocks != 0
    short = problem.weighted and not problem.interleaved and schedule.ctas == 1 and shape.tile_stages < 8
    return schedule.bm == 16 and (partly_empty or short)


def spec(problem: object, schedule: Schedule) -> KernelSpec:
    """The kernel of ``schedule``: compile-time facts alone, so one cubin serves every row, expert and SM count."""
    common = (
        ("kN", problem.n), ("kK", problem.k), ("kInterleaved", problem.interleaved), ("kSwiglu", problem.swiglu),
        ("kRows", f"chord::RowSource::{_SOURCES[problem.layout]}"), ("kBM", schedule.bm), ("kStages", schedule.stages),
    )  # fmt: skip
    return KernelSpec(schedule.kernel, common + _OWN_FIELDS[schedule.kernel](problem, schedule), problem.facts.arch)


def _mma_fields(problem: object, schedule: Schedule) -> tuple[tuple[str, int | bool | str], ...]:
    shape = legality.mma_shape(problem, schedule)
    return (
        ("kWeighted", problem.weighted), ("kDequant", f"chord::Dequant::{_DEQUANTS[problem.dequant]}"), ("kPanels", shape.panels),
        ("kStageBlocks", shape.stage_blocks), ("kSplit", schedule.split), ("kCtas", schedule.ctas), ("kThreads", shape.threads),
        ("kSharedBytes", shape.shared_bytes),
    )  # fmt: skip


def _wgmma_fields(problem: object, schedule: Schedule) -> tuple[tuple[str, int | bool | str], ...]:
    shape = wgmma.shape(problem, schedule)
    return (
        ("kWidths", f"chord::Widths<{', '.join(map(str, shape.widths))}>{{}}"), ("kBoxRows", shape.box_rows), ("kPanels", shape.panels),
        ("kStageBlocks", shape.stage_blocks), ("kConsumers", shape.consumers), ("kGroupSteps", shape.group_steps),
        ("kStagedBlocks", shape.staged), ("kCuts", schedule.split == 2), ("kShare", schedule.cn), ("kCtas", schedule.ctas),
        ("kThreads", shape.threads), ("kSharedBytes", shape.shared_bytes),
    )  # fmt: skip


def _resident_fields(problem: object, schedule: Schedule) -> tuple[tuple[str, int | bool | str], ...]:
    shape = resident.shape(problem, schedule)
    return (
        ("kWidths", f"chord::Widths<{', '.join(map(str, shape.widths))}>{{}}"), ("kUnitPanels", shape.unit_panels),
        ("kConsumers", shape.consumers), ("kGroupSteps", shape.group_steps), ("kThreads", shape.threads),
        ("kSharedBytes", shape.shared_bytes),
    )  # fmt: skip


_OWN_FIELDS = {"w4a16_mma": _mma_fields, "w4a16_wgmma": _wgmma_fields, "w4a16_resident": _resident_fields}


def bind(kernel_spec: KernelSpec, index: int, threads: int, shared_bytes: int, ctas: int, cluster: int, params: struct.Struct) -> Launch:
    """The loaded kernel on device ``index`` over ``ctas`` CTAs, whole clusters of them, and no more clusters than run at once.

    Prepares the device's slots, so that a launch under capture finds one.
    """
    kernel = engine.load(kernel_spec, index, shared_bytes)
    clusters = ctas // cluster
    with torch.cuda.device(index):
        slots.prepare(index)
        if cluster > 1:
            # Clusters do not tile the GPCs of every part; one that waits for a second wave would cost a whole tile.
            clusters = min(clusters, resident_clusters(kernel.handle, threads, cluster, shared_bytes))
    return Launch(kernel.handle, (clusters * cluster, 1, 1), threads, cluster, shared_bytes, params)
