"""Every tile of the WGMMA kernel, with and without cut tiles, and the m16n8k16 kernel in every layout compute the same thing.

Rows per expert are made for the schedule: each of its instruction widths is taken, alone and behind a whole tile, and
there are enough tiles that a schedule which cuts has something to cut.
"""

from __future__ import annotations

from itertools import cycle, islice

import pytest
import torch

from chord_jit import device
from chord_jit.families.grouped import FAMILY
from chord_jit.families.kernels import _WGMMA_TILES, mma_spills
from chord_jit.schedules import wgmma
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.gpu.compare import assert_right
from tests.gpu.grouped_cases import MIXED, PAIRS, GroupedCase, shaped
from tests.gpu.grouped_workload import LAYOUTS, forced, work_of
from tests.gpu.tensors import generator_of

EXPERTS, N, K = 48, 1024, 768  # of grouped_cases.shaped
MODES = ({}, PAIRS, MIXED)
H200 = device.target("sm_90a")
#: Tiles that are also computed by clusters of two, with and without cuts in turns.
SHARED = ((16, 512, 128), (64, 256, 128), (160, 256, 64), (32, 128, 64), (128, 128, 128), (256, 128, 64))


def asked(case: GroupedCase) -> object:
    """The problem of ``case`` on an H200, whatever is at hand: what this module's parameters are legal for."""
    return FAMILY.problem(
        H200, case.experts, case.n, case.k, case.expected_rows, layout=case.layout, interleaved=case.interleaved, swiglu=case.swiglu
    )


def deepest(case: GroupedCase, bm: int, bn: int, bk: int, **rest: int) -> Schedule | None:
    """The legal schedule of that tile with most stages up to 4; None where there is none."""
    for stages in (4, 3, 2):
        schedule = Schedule("w4a16_wgmma", bm, bn, bk, stages, **rest)
        if not violations(asked(case), schedule):
            return schedule
    return None


def wgmma_calls() -> list[tuple[GroupedCase, Schedule]]:
    """Each tile with and without cuts, alone on an SM or two at once, and some that share rows by multicast; layouts (where
    they allow the tile) and modes in turns."""
    wanted = [
        (*tile, dict(split=split, ctas=ctas))
        for bm, tiles in _WGMMA_TILES.items()
        for tile in ((bm, bn, bk) for bn, bk in tiles)
        for ctas in (1, 2)
        for split in (2, 1)
    ]
    wanted += [(*tile, dict(split=2 - turn % 2, cn=2)) for turn, tile in enumerate(SHARED)]
    calls = []
    for bm, bn, bk, rest in wanted:
        turn = len(calls)
        layouts = [LAYOUTS[(turn + shift) % 3] for shift in range(3)]
        cases = [shaped(layout, EXPERTS, bm, **MODES[(turn + turn // 6) % 3]) for layout in layouts]
        found = ((case, schedule) for case in cases if (schedule := deepest(case, bm, bn, bk, **rest)))
        calls += islice(found, 1)
    return calls


def mma_calls() -> list[tuple[GroupedCase, Schedule]]:
    tiles = (Schedule("w4a16_mma", 8, 512, 128, 3), Schedule("w4a16_mma", 16, 512, 64, 4))
    calls = [
        (shaped(layout, EXPERTS, 16, **MODES[(turn + shift) % 3]), schedule)
        for turn, layout in enumerate(LAYOUTS)
        for shift, schedule in enumerate(tiles)
    ]
    assert not any(violations(asked(case), schedule) or mma_spills(asked(case), schedule) for case, schedule in calls)
    return calls


WGMMA, MMA = wgmma_calls(), mma_calls()


def counts_for(case: GroupedCase, schedule: Schedule, widths: tuple[int, ...], sms: int) -> list[int]:
    """Rows of each expert: none, one, each width exactly and one row less, alone and behind whole tiles; more than a wave."""
    bm, workers = schedule.bm, workers_of(schedule, sms)
    ends = sorted({end for width in widths for end in (width, width - 1)})
    counts = list(islice(cycle([0, 1, *ends, *(bm + end for end in ends), 2 * bm + 1, 3 * bm]), case.experts))
    while tiles_of(case.layout, counts, schedule) <= workers:
        counts[-1] += max(bm, 128)
    if tiles_of(case.layout, counts, schedule) % workers == 0:
        counts[0] += 1
    return counts


def workers_of(schedule: Schedule, sms: int) -> int:
    """CTAs, or clusters of them, that share the tiles of a launch."""
    return sms * schedule.ctas // schedule.cn


def tiles_of(layout: str, counts: list[int], schedule: Schedule) -> int:
    """Tiles of a launch; of blocks all that are handed out, with rows or without."""
    bm, columns = schedule.bm, N // (schedule.bn * schedule.cn)
    if layout != "blocks":
        return sum(-(-count // bm) for count in counts) * columns
    blocks = [-(-count // 128) for count in counts]
    return sum(-(-count // 2) if bm > 128 else count * (128 // bm) for count in blocks) * columns


def widths_taken(layout: str, counts: list[int], bm: int, widths: tuple[int, ...]) -> set[int]:
    """Widths of all instructions of a launch, by the kernel's own rule: rows spread evenly over an expert's tiles, whole in blocks."""

    def holds(rows: int) -> int:
        return next(width for width in widths if width >= rows)

    taken = set()
    for count in counts:
        segments = [min(128, count - first) for first in range(0, count, 128)] if layout == "blocks" and bm <= 128 else [count]
        for rows in segments:
            height = bm if layout == "blocks" else holds(-(-rows // -(-rows // bm))) if rows else bm
            taken |= {holds(min(height, rows - first)) for first in range(0, rows, height)}
    return taken


def named(calls: list[tuple[GroupedCase, Schedule]]) -> list:
    return [pytest.param(call, id=f"{call[1]}-{call[0]}".replace(" ", "-")) for call in calls]


@pytest.mark.parametrize("call", named(WGMMA))
def test_every_tile_and_every_width_of_wgmma(call, gpu, seed):
    case, schedule = call
    assert violations(asked(case), schedule) == []
    facts = device.facts(gpu.index)
    widths = wgmma.shape(asked(case), schedule).widths
    counts = counts_for(case, schedule, widths, facts.sms)
    assert widths_taken(case.layout, counts, schedule.bm, widths) == set(widths)
    tiles, workers = tiles_of(case.layout, counts, schedule), workers_of(schedule, facts.sms)
    assert tiles > workers and tiles % workers, f"{tiles} tiles leave nothing to cut for {workers} CTAs or clusters"
    shuffled = torch.tensor(counts, device=gpu)[torch.randperm(case.experts, device=gpu)]
    work = work_of(case, shuffled, generator_of(gpu, seed))
    with forced(schedule):
        assert_right(work.fenced_call(checked=True), work, "wgmma")


@pytest.mark.parametrize("call", named(MMA))
def test_the_kernel_of_few_rows_in_every_layout(call, gpu, seed):
    case, schedule = call
    counts = torch.tensor([*range(case.experts)], device=gpu)[torch.randperm(case.experts, device=gpu)]
    work = work_of(case, counts, generator_of(gpu, seed))
    with forced(schedule):
        assert_right(work.fenced_call(checked=True), work, work.problem.dequant)


def test_every_tile_is_forced_with_and_without_cuts():
    tiles = {(bm, bn, bk, split) for bm, pairs in _WGMMA_TILES.items() for bn, bk in pairs for split in (1, 2)}
    assert {(one.bm, one.bn, one.bk, one.split) for _, one in WGMMA if one.cn == one.ctas == 1} == tiles
    assert {(one.ctas, one.cn, one.split) for _, one in WGMMA} >= {(2, 1, 1), (2, 1, 2), (1, 2, 1), (1, 2, 2)}
    assert {case.layout for case, _ in WGMMA} == {case.layout for case, _ in MMA} == set(LAYOUTS)
    assert {one.bm for _, one in MMA} == {8, 16}
