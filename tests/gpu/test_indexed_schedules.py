"""Every kind of legal schedule of both kernels computes the same thing on rows that a routing names.

``w4a16_mma``: a sample that holds each tile with each residency and depth. ``w4a16_wgmma``: every tile, with and without cuts in
turns; rows per expert are made for the schedule, so that each of its instruction widths is taken, alone and behind a whole tile,
and that a schedule which cuts has something to cut.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import cycle, islice

import pytest
import torch

from chord_jit import align_blocks, device
from chord_jit.families.indexed import FAMILY
from chord_jit.families.kernels import _WGMMA_TILES
from chord_jit.jit.warmup import warm_up
from chord_jit.schedules import wgmma
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import shaped
from tests.gpu.routers import poisoned
from tests.gpu.tensors import fenced, generator_of, weight_of
from tests.gpu.workload import Work, build, forced, problem_of

SAMPLED = [Case(8, 512, 1344, 21, 3, 16, "dropped", weighted=True), Case(8, 1024, 704, 21, 3, 16, "hot", **PAIRS)]
EXPERTS = 48
MODES = ({}, PAIRS, dict(weighted=True), dict(interleaved=True))
H200 = device.target("sm_90a")


def sample(problem) -> list[Schedule]:
    """Candidates of w4a16_mma, taken in order, until every tile and every value of every other field has been shown by one."""
    seen, taken = set(), []
    for schedule in (one for one in FAMILY.candidates(problem) if one.kernel == "w4a16_mma"):
        tile = (schedule.bm, schedule.bn, schedule.bk)
        shows = {tile, *(item for item in asdict(schedule).items() if item[0] not in ("bm", "bn", "bk"))}
        if not shows <= seen:
            seen |= shows
            taken.append(schedule)
    return taken


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_schedules_agree(case, gpu, seed):
    problem, work = problem_of(case, gpu), build(case, gpu, seed)
    schedules = sample(problem)
    assert len(schedules) >= 8 and {schedule.bm for schedule in schedules} == {8, 16}
    report = warm_up([FAMILY.spec(problem, schedule) for schedule in schedules])
    assert not report.failed, str(report)
    wrong = []
    for schedule in schedules:
        with forced(schedule):
            try:
                assert_right(work.fenced_call(), work)
            except AssertionError as error:
                wrong.append(f"{schedule}: {error}")
    assert not wrong, "\n".join(wrong)


# -- w4a16_wgmma --------------------------------------------------------------------------------------------------------
def asked(case: Case) -> object:
    """The problem of ``case`` on an H200, whatever is at hand: what this module's parameters are legal for."""
    modes = dict(interleaved=case.interleaved, swiglu=case.swiglu, weighted=case.weighted)
    return FAMILY.problem(H200, case.experts, case.n, case.k, float(case.block_m), block_m=case.block_m, **modes)


def deepest(case: Case, schedule: Schedule) -> Schedule | None:
    """The legal schedule of that tile with most stages up to 4; None where there is none."""
    legal = (replace(schedule, stages=stages) for stages in (4, 3, 2))
    return next((one for one in legal if not violations(asked(case), one)), None)


def wgmma_calls() -> list[tuple[Case, Schedule]]:
    """Each tile once, with cuts or without, and two of an SM where registers allow; blocks of one to three tiles and modes in turns."""
    tiles = [(bm, bn, bk) for bm, pairs in _WGMMA_TILES.items() for bn, bk in pairs]
    wanted = [Schedule("w4a16_wgmma", *tile, 4, split=1 + turn % 2) for turn, tile in enumerate(tiles)]
    wanted += [Schedule("w4a16_wgmma", 16, 256, 128, 4, split=split, ctas=2) for split in (1, 2)]
    calls = []
    for turn, schedule in enumerate(wanted):
        case = shaped(schedule.bm * (1 + turn % 3), experts=EXPERTS, top_k=1, **MODES[turn // 2 % len(MODES)])
        if found := deepest(case, schedule):
            calls.append((case, found))
    return calls


WGMMA = wgmma_calls()


def counts_for(schedule: Schedule, widths: tuple[int, ...], panels: int, workers: int) -> list[int]:
    """Rows of each expert: none, one, each width exactly and one row less, alone and behind whole tiles; more than a wave."""
    bm = schedule.bm
    ends = sorted({end for width in widths for end in (width, width - 1)})
    counts = list(islice(cycle([0, 1, *ends, *(bm + end for end in ends), 2 * bm + 1, 3 * bm]), EXPERTS))

    def tiles() -> int:
        return sum(-(-count // bm) for count in counts) * panels

    while tiles() <= workers or tiles() % workers == 0:
        counts[-1] += bm
    return counts


def widths_taken(counts: list[int], bm: int, widths: tuple[int, ...]) -> set[int]:
    """Widths of all instructions of a launch: a tile of a routing is cut at its own rows."""
    fills = {min(bm, count - first) for count in counts for first in range(0, count, bm)}
    return {next(width for width in widths if width >= rows) for rows in fills}


def named(calls: list[tuple[Case, Schedule]]) -> list:
    return [pytest.param(call, id=f"{call[1]}-{call[0]}".replace(" ", "-")) for call in calls]


@pytest.mark.parametrize("call", named(WGMMA))
def test_every_tile_and_every_width_of_wgmma(call, gpu, seed):
    case, schedule = call
    assert violations(asked(case), schedule) == []
    widths, generator = wgmma.shape(asked(case), schedule).widths, generator_of(gpu, seed)
    counts = counts_for(schedule, widths, case.n // schedule.bn, device.facts(gpu.index).sms * schedule.ctas)
    assert widths_taken(counts, schedule.bm, widths) == set(widths)
    shuffled = torch.tensor(counts, device=gpu)[torch.randperm(EXPERTS, generator=generator, device=gpu)]
    topk_ids = torch.arange(EXPERTS, device=gpu).repeat_interleave(shuffled)
    topk_ids = topk_ids[torch.randperm(len(topk_ids), generator=generator, device=gpu)].view(-1, 1)
    x = fenced(torch.randn(len(topk_ids), case.k, generator=generator, device=gpu).bfloat16())
    scores = torch.rand(len(topk_ids), 1, generator=generator, device=gpu) if case.weighted else None
    routing = poisoned(align_blocks(topk_ids, case.block_m, EXPERTS), generator)
    work = Work(x, weight_of(EXPERTS, case.n, case.k, case.interleaved, gpu), routing, case.swiglu, scores)
    with forced(schedule):
        assert_right(work.fenced_call(checked=True), work, "wgmma")


def test_every_tile_is_forced_in_blocks_of_one_to_three():
    assert {(one.bm, one.bn, one.bk) for _, one in WGMMA} == {(bm, *tile) for bm, tiles in _WGMMA_TILES.items() for tile in tiles}
    assert {one.split for _, one in WGMMA} == {1, 2} == {one.ctas for _, one in WGMMA}
    assert {case.block_m // one.bm for case, one in WGMMA} == {1, 2, 3}
    assert {(case.interleaved, case.swiglu, case.weighted) for case, _ in WGMMA} >= {
        (False, False, False), (True, True, False), (False, False, True), (True, False, False),
    }  # fmt: skip
