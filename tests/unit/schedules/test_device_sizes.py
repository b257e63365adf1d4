"""Host and device agree: what legality allows passes every assertion of the kernel, and the sizes are the kernel's own."""

import random
from itertools import product

import pytest

from chord_jit.errors import CompileError
from chord_jit.families.indexed import FAMILY
from chord_jit.families.indexed_launch import MMA_PARAMS
from chord_jit.jit import engine
from chord_jit.schedules.legality import mma_shape, violations
from tests.unit.schedules.device_asserts import compile_asserts, order_asserts, size_asserts, with_field
from tests.unit.schedules.problems import problem, schedule

#: Panels that 1, 2, 4 and 8 divide; a K tail; more than one stage and less than one; shapes smaller than any tile.
PROBLEMS = (
    problem(n=1024, k=1344, weighted=True),
    problem(n=512, k=7168, interleaved=True, swiglu=True),
    problem(n=200, k=96, interleaved=True),
    problem(n=8, k=32),
)
TILES = ((128, 256), (128, 512), (256, 128), (256, 256), (512, 64), (512, 128), (1024, 64))
#: The kernel's parameters in the order of ``MMA_PARAMS``: C++ type and name on the device.
POINTERS = {
    "x": "__nv_bfloat16", "weight": "uint8_t", "out": "__nv_bfloat16", "row_weights": "float", "ticket": "unsigned",
    "routing.sorted_ids": "int", "routing.expert_ids": "int", "routing.padded": "int",
}  # fmt: skip
_OF_ROUTING = ("id_capacity", "block_capacity", "routed_rows", "top_k", "experts", "sub_blocks")
NUMBERS = (*(f"routing.{name}" for name in _OF_ROUTING), "routed_before", "reserved")
SIZES = {
    "kWarps": "warps", "kThreads": "threads", "kRowPanels": "row_panels", "kBlocks": "k_blocks", "kTileStages": "tile_stages",
    "kSharedBytes": "shared_bytes",
}  # fmt: skip


def legal_sample() -> list[tuple]:
    """Legal pairs of problem and schedule: a random draw for each tile, far beyond what the family would time."""
    ranges = ((8, 16), TILES, (2, 3, 4, 5, 7, 16), range(1, 9), (1, 2))
    every = [schedule(bm, *tile, stages, split=split, ctas=ctas) for bm, tile, stages, split, ctas in product(*ranges)]
    sample = []
    for asked, tile in product(PROBLEMS, TILES):
        legal = [one for one in every if (one.bn, one.bk) == tile and not violations(asked, one)]
        sample += [(asked, one) for one in random.sample(legal, min(6, len(legal)))]
    return sample


def test_what_legality_allows_the_kernel_accepts_with_the_same_sizes():
    pairs = legal_sample()
    assert len({(one.bn, one.bk) for _, one in pairs}) == len(TILES) and {one.ctas for _, one in pairs} == {1, 2}
    assert max(one.split for _, one in pairs) == 8 and max(one.stages for _, one in pairs) > 6
    lines = []
    for index, (asked, one) in enumerate(pairs):
        kernel = f"chord::W4A16Mma<c{index}::Config>"
        lines += size_asserts("W4A16Mma", index, FAMILY.spec(asked, one), mma_shape(asked, one), SIZES, str(one))
        registers = f"{kernel}::kConsumerRegisters"
        lines.append(f"static_assert(!{kernel}::kMovesRegisters || ({registers} >= 200 && {registers} <= 256));")  # setmaxnreg ends at 256
    compile_asserts("w4a16_mma", lines)


@pytest.mark.parametrize("name, step", [("kSharedBytes", -128), ("kThreads", 128)])
def test_a_host_that_counts_otherwise_does_not_compile(name, step):
    asked = PROBLEMS[0]
    wrong = with_field(FAMILY.spec(asked, schedule()), name, step)
    with pytest.raises(CompileError, match="host and device disagree"):
        engine.build(wrong)


ODD = (schedule(8, 256, 128, 3, split=3), schedule(16, 512, 64, 3, split=4))


@pytest.mark.parametrize("one", ODD, ids=str)
def test_an_odd_schedule_builds_whole(one):
    assert violations(PROBLEMS[0], one) == []
    spec = FAMILY.spec(PROBLEMS[0], one)
    entry = engine.build(spec)
    assert entry.symbol == spec.symbol and entry.facts["spill_bytes"] == 0


def test_the_parameter_struct_is_packed_as_the_kernel_reads_it():
    assert MMA_PARAMS.format == f"<{len(POINTERS)}Q{len(NUMBERS)}i"
    compile_asserts("w4a16_mma", order_asserts("chord::W4A16MmaParams<chord::IndexedParams>", POINTERS, NUMBERS, MMA_PARAMS.size))
