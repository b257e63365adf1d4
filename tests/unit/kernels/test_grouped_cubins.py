"""Kernels of the grouped family: no spills, no local memory, WGMMA never serialised, and the instructions that were meant.

All that the resolver chooses is too much to compile here (``chord tune --compile-only`` does it): of it a set is taken in which
every token and output tile meets every layout and both epilogues, and every layer every layout.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from chord_jit import device
from chord_jit.families import kernels
from chord_jit.families.grouped import FAMILY
from chord_jit.families.grouped_problem import GroupedProblem
from chord_jit.jit import engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import warm_up
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.kernels.checks import MEANT, check

#: Kimi K2's projections by rank: experts, N, K, problem flags.
CASES = {
    "EP8 gate/up": (48, 4096, 7168, {"interleaved": True, "swiglu": True}),
    "EP8 gate/up, plain": (48, 4096, 7168, {}),
    "EP8 down": (48, 7168, 2048, {}),
    "TP8 gate/up": (384, 512, 7168, {"interleaved": True, "swiglu": True}),
    "TP8 down": (384, 7168, 256, {}),
}
LAYOUTS = ("masked", "offsets", "blocks")
ROWS = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
#: N and K that leave a tail, outputs that are aligned to 8 bytes only, with SwiGLU and without: layout, flag, schedule.
RAGGED = dict(experts=5, n=456, k=1344, expected_rows=40, interleaved=True)
RAGGED_FORMS = (
    ("masked", False, Schedule("w4a16_wgmma", 64, 256, 64, 4)),
    ("offsets", True, Schedule("w4a16_wgmma", 128, 128, 64, 3, split=2)),
)
#: Each takes a core for 2 to 5 s.
MOST_KERNELS = 40

Pair = tuple[GroupedProblem, Schedule]


def pairs_of(arch: str) -> dict[tuple[str, str], list[Pair]]:
    """What the resolver chooses over ``ROWS``, by case and layout."""
    facts, found = device.target(arch), {}
    for name, (experts, n, k, flags) in CASES.items():
        for layout in LAYOUTS:
            problems = [FAMILY.problem(facts, experts, n, k, rows, layout=layout, **flags) for rows in ROWS]
            chosen = {FAMILY.schedule(problem): problem for problem in problems}
            found[name, layout] = [(problem, schedule) for schedule, problem in chosen.items()]
    return found


def tile_of(schedule: Schedule) -> tuple[int, int, int]:
    """What the registers of a kernel depend on most: token and output tile, CTAs per SM."""
    return schedule.bm, schedule.bn, schedule.ctas


def covering(stem: str, arch: str = "sm_90a") -> list[Pair]:
    """A small set of the chosen forms in which every tile meets every layout and both epilogues; of the larger
    kernel, every case every layout too."""
    open_, offered = set(), []
    for (case, layout), pairs in pairs_of(arch).items():
        for problem, schedule in pairs:
            if schedule.kernel == stem:
                tile = tile_of(schedule)
                traits = {(tile, layout), (tile, problem.swiglu)} | ({(case, layout)} if stem == "w4a16_wgmma" else set())
                open_ |= traits
                offered.append((traits, problem, schedule))
    taken = []
    while open_:
        traits, problem, schedule = max(offered, key=lambda one: len(one[0] & open_))
        open_ -= traits
        taken.append((problem, schedule))
    return taken


def timed_tiles(known: list[Pair]) -> list[Pair]:
    """One form, without cuts, for every tile that is timed and that ``known`` lacks, over both epilogues and two layouts in turn."""
    held = {tile_of(schedule) for _, schedule in known}
    experts, n, k, flags = CASES["EP8 gate/up"]
    forms = [(layout, form) for form in (flags, {}) for layout in ("masked", "offsets")]
    problems = [FAMILY.problem(device.target("sm_90a"), experts, n, k, 64, layout=layout, **form) for layout, form in forms]
    pairs = []
    for schedule in FAMILY.candidates(problems[0]):
        if schedule.kernel == "w4a16_wgmma" and schedule.split == 1 and tile_of(schedule) not in held:
            held.add(tile_of(schedule))
            pairs.append((problems[len(pairs) % len(problems)], schedule))
    return [(problem, schedule) for problem, schedule in pairs if not violations(problem, schedule)]


def ragged() -> list[Pair]:
    facts = device.target("sm_90a")
    return [(FAMILY.problem(facts, **RAGGED, layout=layout, swiglu=swiglu), schedule) for layout, swiglu, schedule in RAGGED_FORMS]


WGMMA = covering("w4a16_wgmma")
WGMMA += [*timed_tiles(WGMMA), *ragged()]
MMA = {arch: covering("w4a16_mma", arch) for arch in ("sm_90a", "sm_100a", "sm_103a")}


def title(pair: Pair) -> str:
    problem, schedule = pair
    return f"{problem.facts.arch} {problem.layout} {problem.n}x{problem.k}{' swiglu' if problem.swiglu else ''} {schedule}"


def specs(pairs: list[Pair]) -> list[KernelSpec]:
    return [FAMILY.spec(*pair) for pair in pairs]


@pytest.fixture(scope="module", autouse=True)
def compiled(private_roots):
    """All of them at once, on every core; a kernel that fails to compile fails its own test below."""
    warm_up([*specs(WGMMA), *(spec for pairs in MMA.values() for spec in specs(pairs)), serialised()])


def test_the_set_is_small_and_holds_every_tile():
    assert len(set(specs(WGMMA))) <= MOST_KERNELS
    assert [text for pair in WGMMA for text in violations(*pair)] == []
    tiles = {(bm, bn) for bm, tiles in kernels._WGMMA_TILES.items() for bn, _ in tiles}
    assert {(schedule.bm, schedule.bn) for _, schedule in WGMMA} >= tiles
    assert {(problem.layout, problem.swiglu) for problem, _ in WGMMA} == set(product(LAYOUTS, (False, True)))


@pytest.mark.parametrize("pair", WGMMA, ids=title)
def test_w4a16_wgmma(pair, tmp_path):
    spec = FAMILY.spec(*pair)
    code = check(spec, tmp_path, MEANT["w4a16_wgmma"])
    widths = {int(found[1]) for name in code if (found := re.match(r"HGMMA\.64x(\d+)x16\.F32\.BF16", name))}
    assert widths == set(map(int, re.findall(r"\d+", dict(spec.config)["kWidths"])))


@pytest.mark.parametrize("pair", [pair for pairs in MMA.values() for pair in pairs], ids=title)
def test_w4a16_mma_in_grouped_layouts(pair, tmp_path):
    check(FAMILY.spec(*pair), tmp_path, MEANT["w4a16_mma"])


def test_off_hopper_every_layout_is_served():
    for arch in ("sm_100a", "sm_103a"):
        assert {problem.layout for problem, _ in MMA[arch]} == set(LAYOUTS)
        assert {schedule.kernel for pairs in pairs_of(arch).values() for _, schedule in pairs} == {"w4a16_mma"}


def serialised() -> KernelSpec:
    """A kernel of more main loops than fit the registers: the assembler then waits after every product, and says so."""
    spec = FAMILY.spec(*next(pair for pair in WGMMA if (pair[1].bm, pair[1].bn) == (128, 256)))
    every = ", ".join(str(width) for width in range(16, 129, 16))
    return replace(spec, config=tuple({**dict(spec.config), "kWidths": f"chord::Widths<{every}>{{}}", "kGroupSteps": 2}.items()))


def test_a_serialised_wgmma_is_a_warning_and_fails_the_check(tmp_path):
    (warning,) = engine.build(serialised()).facts["warnings"]
    assert warning.startswith("(C75") and "serialized" in warning
    with pytest.raises(AssertionError, match="serialized"):
        check(serialised(), tmp_path, ())
