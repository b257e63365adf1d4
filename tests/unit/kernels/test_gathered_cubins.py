"""Kernels of many indexed rows: no spills, no local memory, WGMMA never serialised, rows gathered and not copied by tensor map.

All that the resolver chooses for these models is too much to compile here (all of it was, once): of it a set is taken in which every
token and output tile meets both epilogues and both ways to cut, and every K has a kernel; what ``test_cubins`` compiles counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from chord_jit import device
from chord_jit.families.indexed import FAMILY
from chord_jit.families.indexed_problem import IndexedProblem, shared_block_m
from chord_jit.jit import engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import warm_up
from chord_jit.schedules import table
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.kernels import test_cubins
from tests.unit.kernels.checks import GATHERED, check

KERNELS = ("w4a16_wgmma", "w4a16_resident")
H200 = device.target("sm_90a")
#: Hidden, expert intermediate, experts, top k; DeepSeek-V3's experts have the shapes of Kimi K2's.
MODELS = {
    "Kimi K2": (7168, 2048, 384, 8), "DeepSeek-V3": (7168, 2048, 256, 8),
    "Qwen3-30B-A3B": (2048, 768, 128, 8), "Qwen3-235B-A22B": (4096, 1536, 128, 8),
}  # fmt: skip
RANKS = (dict(ep=8), dict(ep=16), dict(tp=8), dict(tp=16))
#: No K of 48: a group of scales has 32.
UNSERVED = ("Qwen3-30B-A3B", dict(tp=16))
ROWS = (16, 32, 64, 128, 256, 512)
#: Each takes a core for 2 to 5 s.
MOST_KERNELS = 24

Pair = tuple[IndexedProblem, Schedule]


def chosen() -> Iterator[Pair]:
    """Both projections of every model on every rank, in blocks that serve both and in down's own."""
    for name, layer in MODELS.items():
        for ranks in RANKS:
            if (name, ranks) == UNSERVED:
                continue
            model = Deployment(*layer, **ranks)
            for rows in ROWS:
                gate_up = FAMILY.problem(H200, model.local_experts, *model.gate_up, rows, interleaved=True, swiglu=True)
                down = FAMILY.problem(H200, model.local_experts, *model.down, rows, weighted=True)
                block_m = shared_block_m(gate_up, down)
                for problem in (replace(gate_up, block_m=block_m), replace(down, block_m=block_m), down):
                    yield problem, FAMILY.schedule(problem)


def measured() -> Iterator[Pair]:
    """The rows of the tables, gate/up without SwiGLU interleaved or not in turn."""
    for kernel in KERNELS:
        for index, row in enumerate(row for row in table.read(kernel) if row["layout"] == "indexed"):
            interleaved = row["swiglu"] or row["k"] == 7168 and index % 2 == 0
            problem = FAMILY.problem(H200, row["experts"], row["n"], row["k"], 64.0, interleaved=interleaved, swiglu=row["swiglu"])
            yield problem, Schedule(kernel, **row["schedule"])


def traits(problem: IndexedProblem, schedule: Schedule) -> set[tuple]:
    """What a set must hold one of: the tile by epilogue and by cut, and K."""
    tile = (schedule.kernel, schedule.bm, schedule.bn, schedule.ctas)
    return {(*tile, problem.swiglu), (*tile, f"split {schedule.split}"), (schedule.kernel, problem.k)}


def known() -> set[KernelSpec]:
    """What ``test_cubins`` compiles and checks for Hopper."""
    return {spec for case in test_cubins.CASES for spec in test_cubins.specs_of("sm_90a", case)}


def covering() -> list[Pair]:
    """A small set with every trait of what is chosen or measured."""
    offered = [pair for pair in (*measured(), *chosen()) if pair[1].kernel in KERNELS]
    checked = known()
    open_ = set().union(*(traits(*pair) for pair in offered))
    open_ -= set().union(*(traits(*pair) for pair in offered if FAMILY.spec(*pair) in checked))
    taken = []
    while open_:
        best = max(offered, key=lambda pair: len(traits(*pair) & open_))
        open_ -= traits(*best)
        taken.append(best)
    return taken


PAIRS = covering()


def title(pair: Pair) -> str:
    problem, schedule = pair
    return f"{problem.n}x{problem.k}{' swiglu' if problem.swiglu else ''} {schedule}"


#: What the assembler serialises, so that no problem is offered it: a loop over K of one pass, which the compiler dissolves, and too many
#: fragments for two CTAs an SM. As soon as it takes one without a word, the rule in ``families/kernels.py`` may go.
SERIALISED = (
    (FAMILY.problem(H200, 8, 1024, 64, 64.0), Schedule("w4a16_resident", 128, 128, 64, 4)),
    (FAMILY.problem(H200, 8, 1024, 2048, 64.0), Schedule("w4a16_wgmma", 16, 256, 256, 2, ctas=2)),
)


@pytest.fixture(scope="module", autouse=True)
def compiled(private_roots):
    """All of them at once, on every core; a kernel that fails to compile fails its own test below."""
    warm_up(FAMILY.spec(*pair) for pair in (*PAIRS, *SERIALISED))


def test_the_set_is_small_and_legal():
    assert len({FAMILY.spec(*pair) for pair in PAIRS}) <= MOST_KERNELS
    assert [text for pair in PAIRS for text in violations(*pair)] == []
    assert {schedule.kernel for _, schedule in PAIRS} == set(KERNELS)


@pytest.mark.parametrize("pair", PAIRS, ids=title)
def test_gathered_kernels(pair, tmp_path):
    spec = FAMILY.spec(*pair)
    code = check(spec, tmp_path, GATHERED[spec.stem])
    assert not [name for name in code if name.startswith("UTMA")], "the tensor copy engine cannot gather"
    widths = {int(found[1]) for name in code if (found := re.match(r"HGMMA\.64x(\d+)x16\.F32\.BF16", name))}
    assert widths == set(map(int, re.findall(r"\d+", dict(spec.config)["kWidths"])))


@pytest.mark.parametrize("pair", SERIALISED, ids=title)
def test_what_the_assembler_serialises_is_legal_and_never_offered(pair):
    problem, schedule = pair
    assert any("serialized" in text for text in engine.build(FAMILY.spec(*pair)).facts["warnings"])
    assert violations(*pair) == [] and schedule not in FAMILY.candidates(problem)


@pytest.mark.parametrize("k", [32, 64, 96])
def test_rows_are_kept_for_two_blocks_of_k_and_more(k):
    offered = {one.kernel for one in FAMILY.candidates(FAMILY.problem(H200, 8, 1024, k, 64.0))}
    assert ("w4a16_resident" in offered) == (k > 64)
