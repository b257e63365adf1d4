"""Host and device agree on w4a16_resident: what legality allows passes every assertion of the kernel, with the same sizes."""

import re
from dataclasses import replace
from itertools import product

import pytest

from chord_jit.errors import CompileError
from chord_jit.families.indexed import FAMILY
from chord_jit.families.indexed_launch import RESIDENT_PARAMS
from chord_jit.jit import engine
from chord_jit.jit.render import config_struct
from chord_jit.schedules import resident
from chord_jit.schedules.legality import violations
from tests.unit.schedules.device_asserts import (
    compile_asserts,
    forms_of_the_page,
    order_asserts,
    register_asserts,
    size_asserts,
    with_field,
)
from tests.unit.schedules.problems import problem, resident_schedule

#: Many units of a row tile and one; K tails; shapes smaller than any tile; the longest K.
PROBLEMS = (
    problem(n=7168, k=256, weighted=True),
    problem(n=1536, k=192, interleaved=True, swiglu=True),
    problem(n=456, k=224, interleaved=True),
    problem(n=2048, k=480),
    problem(n=200, k=96, interleaved=True, swiglu=True),
    problem(n=8, k=32),
)
TILES = (32, 48, 64, 96, 128)
SIZES = {
    "kGroups": "consumers", "kUnitPanels": "unit_panels", "kUnits": "units", "kThreads": "threads", "kRowPanels": "row_panels",
    "kBlocks": "k_blocks", "kSharedBytes": "shared_bytes",
}  # fmt: skip
#: The kernel's parameters in the order of ``RESIDENT_PARAMS``: what each pointer points at, and the numbers.
POINTERS = {
    "activations.x": "__nv_bfloat16", "activations.row_weights": "float", "weight": "uint8_t", "out": "__nv_bfloat16",
    "ticket": "unsigned", "rows.sorted_ids": "int", "rows.expert_ids": "int", "rows.padded": "int",
}  # fmt: skip
NUMBERS = ("id_capacity", "block_capacity", "routed_rows", "top_k", "experts", "sub_blocks")


def legal() -> list[tuple]:
    """Every legal pair of a problem and a schedule, far beyond what the family would time."""
    every = [
        (asked, resident_schedule(bm, -(-asked.k // 64) * 64, stages)) for asked, bm, stages in product(PROBLEMS, TILES, range(2, 17))
    ]
    return [pair for pair in every if not violations(*pair)]


def test_what_legality_allows_the_kernel_accepts_with_the_same_sizes():
    pairs = legal()
    assert len(pairs) > 200 and {asked for asked, _ in pairs} == set(PROBLEMS)
    assert {one.bm for _, one in pairs} == set(TILES) and {one.stages for _, one in pairs} == set(range(2, 17))
    assert {resident.shape(*pair).consumers for pair in pairs} == {2, 3}
    lines = []
    for index, (asked, one) in enumerate(pairs):
        kernel, sizes = f"chord::W4A16Resident<c{index}::Config>", resident.shape(asked, one)
        lines += size_asserts("W4A16Resident", index, FAMILY.spec(asked, one), sizes, SIZES, str(one))
        lines += register_asserts("W4A16Resident", index, sizes.consumers)
        lines.append(f"static_assert({kernel}::kRowsBytes % 1024 == 0);")  # the swizzle repeats
        lines.append(f"static_assert({kernel}::kWeightAt % 128 == 0 && {kernel}::kBarriersAt % 8 == 0);")
    compile_asserts("w4a16_resident", lines)


def test_the_page_states_the_sizes_of_the_main_forms():
    lines, forms = [], []
    for index, (form, widths, consumers, registers, *stated) in enumerate(forms_of_the_page("w4a16_resident")):
        bm, bn, bk, stages = map(int, re.fullmatch(r"(\d+)x(\d+)x(\d+) s(\d+)", form).groups())
        one, asked = resident_schedule(bm, bk, stages), problem(n=7168, k=bk, interleaved=True)
        plain, fused = (resident.shape(replace(asked, swiglu=swiglu), one) for swiglu in (False, True))
        assert violations(asked, one) == [] and bn == one.bn
        assert (list(plain.widths), plain.consumers) == (list(map(int, widths.split())), int(consumers))
        rows, ring = 2 * bm * bk * 2, stages * bk // 64 * 4608
        rest = 2 * (bm * 12 + 32) + (2 * stages + 6) * 8
        staging = [size.shared_bytes - rows - ring - rest for size in (plain, fused)]
        assert list(map(int, re.findall(r"\d+", " ".join(stated)))) == [rows, *staging, ring, rest, plain.shared_bytes]
        kernel, (producer, consumer) = f"chord::W4A16Resident<c{index}::Config>", registers.split()
        lines.append(f"namespace c{index} {{ {config_struct(FAMILY.spec(asked, one))} }}")
        lines.append(f"static_assert({kernel}::kProducerRegisters == {producer} && {kernel}::kConsumerRegisters == {consumer});")
        forms.append(form)
    assert forms == ["64x128x256 s5", "96x128x256 s4", "128x128x256 s3"]
    compile_asserts("w4a16_resident", lines)


@pytest.mark.parametrize("name, step", [("kSharedBytes", -128), ("kThreads", 128)])
def test_a_host_that_counts_otherwise_does_not_compile(name, step):
    spec = FAMILY.spec(PROBLEMS[0], resident_schedule())
    with pytest.raises(CompileError, match="host and device disagree"):
        engine.build(with_field(spec, name, step))


def test_the_parameter_struct_is_packed_as_the_kernel_reads_it():
    assert RESIDENT_PARAMS.format == f"<{len(POINTERS)}Q{len(NUMBERS)}i"
    numbers = [f"rows.{name}" for name in NUMBERS]
    compile_asserts("w4a16_resident", order_asserts("chord::W4A16ResidentParams", POINTERS, numbers, RESIDENT_PARAMS.size))
