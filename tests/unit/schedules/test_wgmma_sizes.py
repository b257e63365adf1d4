"""Host and device agree on w4a16_wgmma: what legality allows passes every assertion of the kernel, with the same sizes."""

import re
from itertools import product
from pathlib import Path

import pytest

from chord_jit.errors import CompileError
from chord_jit.families import kernels
from chord_jit.families.grouped import FAMILY
from chord_jit.families.grouped_launch import MMA_PARAMS, WGMMA_PARAMS
from chord_jit.families.indexed_launch import WGMMA_PARAMS as GATHERED_PARAMS
from chord_jit.jit import engine, tensor_map
from chord_jit.schedules import wgmma
from chord_jit.schedules.legality import violations
from tests.unit.schedules.device_asserts import (
    compile_asserts,
    forms_of_the_page,
    order_asserts,
    register_asserts,
    size_asserts,
    with_field,
)
from tests.unit.schedules.problems import LAYOUTS, grouped, problem, wgmma_schedule

#: Panels that 1, 2 and 4 divide; K tails; more than one stage and less than one; shapes smaller than any tile.
PROBLEMS = (
    grouped(n=1024, k=7168, layout="masked"),
    grouped(n=1024, k=7168, interleaved=True, swiglu=True, layout="offsets"),
    grouped(n=512, k=2048, interleaved=True, layout="blocks"),
    grouped(n=200, k=1344, layout="offsets"),
    grouped(n=8, k=32, layout="masked"),
    problem(n=1024, k=7168),
    problem(n=456, k=1344, interleaved=True, swiglu=True),
)
EVERY = [
    wgmma_schedule(bm, bn, bk, stages, cn=cn, split=1 + stages % 2, ctas=ctas)
    for bm, bn, bk, stages, cn, ctas in product(range(16, 257, 16), (128, 256, 512), (64, 128, 256), (2, 3, 4, 5, 6, 16), (1, 2), (1, 2))
]
SIZES = {
    "kPanels": "panels", "kStageBlocks": "stage_blocks", "kGroups": "consumers", "kThreads": "threads", "kRowPanels": "row_panels",
    "kBlocks": "k_blocks", "kTileStages": "tile_stages", "kSharedBytes": "shared_bytes", "kBoxRows": "box_rows", "kStagedBlocks": "staged",
}  # fmt: skip
#: The kernels' parameters in the order of ``WGMMA_PARAMS`` and ``MMA_PARAMS``: what each pointer points at, and the numbers.
WGMMA_POINTERS = {
    "weight": "uint8_t", "out": "__nv_bfloat16", "ticket": "unsigned", "joints": "unsigned", "sums": "float4", "rows.layout": "int",
}  # fmt: skip
MMA_POINTERS = {
    "x": "__nv_bfloat16", "weight": "uint8_t", "out": "__nv_bfloat16", "row_weights": "float", "ticket": "unsigned",
    "routing.layout": "int",
}  # fmt: skip
NUMBERS = ("segments", "rows", "max_m", "experts")
GATHERED_POINTERS = {
    "activations.x": "__nv_bfloat16", "activations.row_weights": "float", "weight": "uint8_t", "out": "__nv_bfloat16", "ticket": "unsigned",
    "joints": "unsigned", "sums": "float4", "rows.sorted_ids": "int", "rows.expert_ids": "int", "rows.padded": "int",
}  # fmt: skip
GATHERED_NUMBERS = ("id_capacity", "block_capacity", "routed_rows", "top_k", "experts", "sub_blocks")


def legal() -> list[tuple]:
    """Every fifth legal pair of a problem and a schedule, far beyond what the family would time."""
    return [(asked, one) for asked in PROBLEMS for one in EVERY if not violations(asked, one)][::5]


def test_what_legality_allows_the_kernel_accepts_with_the_same_sizes():
    pairs = legal()
    assert {(one.bn, one.bk) for _, one in pairs} >= set(product((128, 256, 512), (64, 128))) and len(pairs) > 100
    assert {asked.layout for asked, _ in pairs} == {*LAYOUTS, "indexed"}
    assert {(one.split, one.ctas) for _, one in pairs} == set(product((1, 2), (1, 2)))
    lines = []
    for index, (asked, one) in enumerate(pairs):
        sizes = wgmma.shape(asked, one)
        lines += size_asserts("W4A16Wgmma", index, kernels.spec(asked, one), sizes, SIZES, str(one))
        lines += register_asserts("W4A16Wgmma", index, sizes.consumers, one.ctas)
    compile_asserts("w4a16_wgmma", lines)


@pytest.mark.parametrize("cells", forms_of_the_page("w4a16_wgmma"), ids=lambda cells: cells[0])
def test_the_page_states_the_sizes_of_the_main_forms(cells):
    form, widths, groups, _, rows, staging, weights, rest, total = cells
    bm, bn, bk, stages, ctas = map(int, re.fullmatch(r"(\d+)x(\d+)x(\d+) s(\d+)(?: ctas(\d))?", form).groups(default="1"))
    plain, fused = (
        wgmma.shape(grouped(n=4096, k=7168, interleaved=True, swiglu=swiglu), wgmma_schedule(bm, bn, bk, stages, ctas=ctas))
        for swiglu in (False, True)
    )
    assert (plain.consumers, plain.consumers * 64 * int(groups[-1])) == (int(groups[0]), bn)
    stated = list(map(int, re.findall(r"\d+", widths)))
    assert stated == list(plain.widths) if "..." not in widths else (stated[:2], stated[-1]) == (list(plain.widths[:2]), bm)
    rings = [stages * plain.stage_blocks * each for each in (bm * 128, plain.panels * 4608)]
    assert [int(rows), int(weights), int(rest), int(total)] == [*rings, stages * 48 + 48, plain.shared_bytes]
    left = [size.shared_bytes - sum(rings) - int(rest) for size in (plain, fused)]
    assert list(map(int, re.findall(r"\d+", staging))) == left


def test_the_page_states_what_the_lists_of_gathered_rows_take():
    page = (Path(__file__).parents[3] / "docs" / "kernels" / "w4a16_wgmma.md").read_text()
    stated = re.findall(r"([\d,]+) (?:bytes )?at (\d+)x(\d+)x(\d+) s(\d+)", page)
    assert len(stated) == 2
    for more, *tile in stated:
        one, shape = wgmma_schedule(*map(int, tile)), dict(n=4096, k=7168)
        gathered, boxed = (wgmma.shape(asked, one).shared_bytes for asked in (problem(**shape), grouped(**shape)))
        assert gathered - boxed == int(more.replace(",", "")) and violations(problem(**shape), one) == []


def test_every_tile_that_is_timed_is_legal_somewhere():
    """A tile that no problem allows would be timed nowhere and hide a mistake."""
    asked = grouped(n=4096, k=7168)
    timed = {(bm, bn, bk) for bm, tiles in kernels._WGMMA_TILES.items() for bn, bk in tiles}
    offered = {(one.bm, one.bn, one.bk) for one in FAMILY.candidates(asked) if one.kernel == "w4a16_wgmma"}
    assert offered == timed


@pytest.mark.parametrize("name, step", [("kSharedBytes", -128), ("kThreads", 128)])
def test_a_host_that_counts_otherwise_does_not_compile(name, step):
    spec = FAMILY.spec(PROBLEMS[0], wgmma_schedule())
    with pytest.raises(CompileError, match="host and device disagree"):
        engine.build(with_field(spec, name, step))


def test_the_parameter_structs_are_packed_as_the_kernels_read_them():
    assert WGMMA_PARAMS.format == f"<{tensor_map.BYTES}s{len(WGMMA_POINTERS)}Q{len(NUMBERS)}i" and MMA_PARAMS.format == "<6Q6i"
    numbers = [f"rows.{name}" for name in NUMBERS]
    struct = "chord::W4A16WgmmaParams<chord::BoxedActivations>"
    lines = order_asserts(struct, WGMMA_POINTERS, numbers, WGMMA_PARAMS.size, head="{}, ")
    assert GATHERED_PARAMS.format == f"<{len(GATHERED_POINTERS)}Q{len(GATHERED_NUMBERS)}i"
    struct_gathered, gathered = "chord::W4A16WgmmaParams<chord::GatheredActivations>", [f"rows.{name}" for name in GATHERED_NUMBERS]
    compile_asserts("w4a16_wgmma", [*lines, f"static_assert(sizeof(cute::TmaDescriptor) == {tensor_map.BYTES});"])
    compile_asserts("w4a16_wgmma", order_asserts(struct_gathered, GATHERED_POINTERS, gathered, GATHERED_PARAMS.size))
    struct, numbers = "chord::W4A16MmaParams<chord::GroupedParams>", [f"routing.{name}" for name in NUMBERS]
    compile_asserts("w4a16_mma", order_asserts(struct, MMA_POINTERS, [*numbers, "routed_before", "reserved"], MMA_PARAMS.size))
