"""Every rule of w4a16_resident: broken alone, named with its values, exact at its edge; and what is offered for timing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import resident
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.schedules.problems import H200, LAYOUTS, SM_COUNTS, grouped, problem, problems, resident_schedule

BM = "BM must be one of 32, 48, 64, 96, 128, got "
ONES = "CM, CN, SPLIT and CTAS must be 1, got "
THREE = "STAGES must lie in 3..16, a stage for each warpgroup, "

# rule: the change to a good problem, the change to a good schedule, the only message.
BROKEN = {
    "Blackwell": (dict(arch="sm_100a"), {}, "kernel w4a16_resident runs on sm_90a only, got sm_100a"),
    "newer Blackwell": (dict(arch="sm_103a"), {}, "kernel w4a16_resident runs on sm_90a only, got sm_103a"),
    "BM": ({}, dict(bm=80), BM + "80"),
    "BM below": ({}, dict(bm=16), BM + "16"),
    "BM above": ({}, dict(bm=256), BM + "256"),
    "block_m": (dict(block_m=96), {}, "BM must divide the routing's block_m, got BM=64 and block_m=96"),
    "block_m below": (dict(block_m=32), {}, "BM must divide the routing's block_m, got BM=64 and block_m=32"),
    "BN": ({}, dict(bn=256), "BN must be 128, got 256"),
    "BK below": ({}, dict(bk=128), "BK must be the padded K, got BK=128 and K=256"),
    "BK above": ({}, dict(bk=512), "BK must be the padded K, got BK=512 and K=256"),
    "BK of a tail": (dict(k=224), dict(bk=224), "BK must be the padded K, got BK=224 and K=256"),
    "STAGES below": ({}, dict(stages=1), THREE + "got 1"),
    "STAGES of three warpgroups": ({}, dict(stages=2), THREE + "got 2"),
    "STAGES of two": ({}, dict(bm=128, stages=1), "STAGES must lie in 2..16, a stage for each warpgroup, got 1"),
    "STAGES above": (dict(k=32), dict(bk=64, stages=17), THREE + "got 17"),
    "CM": ({}, dict(cm=2), ONES + "CM=2, CN=1, SPLIT=1, CTAS=1"),
    "CN": ({}, dict(cn=2), ONES + "CM=1, CN=2, SPLIT=1, CTAS=1"),
    "SPLIT": ({}, dict(split=2), ONES + "CM=1, CN=1, SPLIT=2, CTAS=1"),
    "CTAS": ({}, dict(ctas=2), ONES + "CM=1, CN=1, SPLIT=1, CTAS=2"),
    "shared memory": ({}, dict(bm=128), "shared memory must fit one CTA an SM, got 244912 of 232448 bytes"),
    "long K": (dict(k=7168), dict(bk=7168), "shared memory must fit one CTA an SM, got 3928752 of 232448 bytes"),
}


def check(changes, fields) -> list[str]:
    return violations(problem(**{"k": 256, **changes}), replace(resident_schedule(), **fields))


@pytest.mark.parametrize("block_m", [0, 64, 128, 192])
@pytest.mark.parametrize("sms", SM_COUNTS)
def test_the_example_is_legal(sms, block_m):
    assert check(dict(sms=sms, block_m=block_m), {}) == []


@pytest.mark.parametrize("changes, fields, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_the_only_one_named(changes, fields, message):
    assert check(changes, fields) == [message]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_rows_are_served_by_no_kernel_of_resident_rows(layout):
    found = violations(grouped(k=256, layout=layout), resident_schedule())
    assert found == [f"kernel w4a16_resident serves indexed rows only, got {layout}"]


def test_all_broken_rules_are_named_at_once():
    found = check(dict(arch="sm_100a"), dict(bm=12, bn=64, bk=96, stages=0, split=3))
    assert [text.split()[0] for text in found] == ["kernel", "BM", "BN", "BK", "STAGES", "CM,"]


@pytest.mark.parametrize("changes, fields", [
    (dict(k=32), dict(bk=64, stages=16)), ({}, dict(stages=3)), (dict(k=224), {}), (dict(n=8, k=32), dict(bk=64)),
    (dict(k=576), dict(bm=32, bk=576, stages=3)), ({}, dict(bm=128, stages=3)), ({}, dict(bm=128, stages=2)),
    (dict(block_m=96), dict(bm=96)),
], ids=str)
def test_the_edge_of_a_rule_is_legal(changes, fields):
    assert check(changes, fields) == []


# -- sizes --------------------------------------------------------------------------------------------------------------
# Two buffers of rows, staging of each warpgroup, stages of whole panels, three lists and a record a buffer, barriers; by hand.
SHARED = {
    (64, 256, 5): 2 * 64 * 512 + 3 * 64 * 144 + 5 * 4 * 4608 + 2 * (64 * 12 + 32) + 16 * 8,
    (96, 256, 4): 2 * 96 * 512 + 3 * 96 * 144 + 4 * 4 * 4608 + 2 * (96 * 12 + 32) + 14 * 8,
    (128, 256, 3): 2 * 128 * 512 + 2 * 128 * 144 + 3 * 4 * 4608 + 2 * (128 * 12 + 32) + 12 * 8,
    (32, 64, 6): 2 * 32 * 128 + 3 * 32 * 144 + 6 * 4608 + 2 * (32 * 12 + 32) + 18 * 8,
}


@pytest.mark.parametrize("tile", SHARED, ids=str)
def test_shared_memory_is_counted_by_hand(tile):
    bm, bk, stages = tile
    assert resident.shape(problem(k=bk), resident_schedule(bm, bk, stages)).shared_bytes == SHARED[tile] <= H200.shared_bytes


@pytest.mark.parametrize("bm, consumers", [(32, 3), (48, 3), (64, 3), (96, 3), (128, 2)])
def test_swiglu_stages_half_of_the_outputs_of_each_warpgroup(bm, consumers):
    plain, fused = (resident.shape(problem(k=64, interleaved=True, swiglu=swiglu), resident_schedule(bm, 64)) for swiglu in (False, True))
    assert (plain.consumers, plain.threads) == (fused.consumers, fused.threads) == (consumers, 128 * (consumers + 1))
    assert plain.shared_bytes - fused.shared_bytes == consumers * bm * 64


def test_shared_memory_fits_to_the_byte():
    asked, one = problem(k=256), resident_schedule(96, stages=4)
    size = resident.shape(asked, one).shared_bytes
    tight, short = (replace(asked, facts=replace(H200, shared_bytes=most)) for most in (size, size - 1))
    assert violations(tight, one) == []
    assert violations(short, one) == [f"shared memory must fit one CTA an SM, got {size} of {size - 1} bytes"]


@pytest.mark.parametrize("n, interleaved, panels, unit_panels, units", [
    (7168, False, 56, 14, 4), (8, False, 1, 1, 1), (136, False, 2, 2, 1), (136, True, 2, 2, 1), (2560, False, 20, 20, 1),
    (2816, False, 22, 11, 2), (4096, True, 32, 16, 2), (16384, False, 128, 15, 9),
], ids=str)  # fmt: skip
def test_a_row_tile_is_cut_into_units_of_about_fourteen_panels(n, interleaved, panels, unit_panels, units):
    sizes = resident.shape(problem(n=n, k=256, interleaved=interleaved), resident_schedule())
    assert (sizes.row_panels, sizes.unit_panels, sizes.units) == (panels, unit_panels, units)


def check_sizes(asked, one: Schedule) -> None:
    sizes = resident.shape(asked, one)
    assert list(sizes.widths) == sorted(set(sizes.widths)) and sizes.widths[-1] == one.bm
    assert all(width % 16 == 0 for width in sizes.widths)
    assert one.bm * sizes.consumers <= 288, "the sums of a thread must leave registers for fragments"
    assert sizes.units * sizes.unit_panels >= sizes.row_panels > (sizes.units - 1) * sizes.unit_panels
    assert sizes.unit_panels <= 20 and sizes.k_blocks * 64 == one.bk >= asked.k
    assert sizes.shared_bytes <= asked.facts.shared_bytes


@given(problems(), st.tuples(*[st.integers(-3, 40) | st.sampled_from([48, 64, 96, 128, 256, 512])] * 8))
def test_any_numbers_get_an_answer(asked, numbers):
    one = Schedule("w4a16_resident", *numbers)
    found = violations(asked, one)
    assert all(isinstance(text, str) and text for text in found)
    if not found:
        check_sizes(asked, one)


# -- candidates ---------------------------------------------------------------------------------------------------------
def offered(asked) -> list[Schedule]:
    return [one for one in FAMILY.candidates(asked) if one.kernel == "w4a16_resident"]


@given(problems(), st.integers(1, 24))
def test_every_candidate_is_legal_and_offered_once(asked, k):
    asked = replace(asked, k=32 * k)
    every = offered(asked)
    assert len(set(every)) == len(every) <= 25 and (asked.facts.arch == "sm_90a" or not every)
    for one in every:
        assert violations(asked, one) == []
        check_sizes(asked, one)


@pytest.mark.parametrize("k, tallest", [
    (32, 0), (64, 0), (96, 128), (192, 128), (256, 128), (320, 64), (384, 64), (448, 48), (512, 48), (576, 32), (640, 0), (2048, 0),
])
def test_only_short_k_leaves_room_for_two_tiles_of_rows(k, tallest):
    """And of a single block of K the assembler makes a slow kernel (``tests/unit/kernels/test_gathered_cubins.py``)."""
    assert max((one.bm for one in offered(problem(n=7168, k=k))), default=0) == tallest


def test_every_tile_is_offered_somewhere():
    """A tile that no problem allows would be timed nowhere and hide a mistake."""
    assert {one.bm for one in offered(problem(k=128))} == set(resident._WIDTHS)


@pytest.mark.parametrize("block_m, tiles", [
    (0, {32, 48, 64, 96, 128}), (16, set()), (64, {32, 64}), (96, {32, 48, 96}), (128, {32, 64, 128}),
], ids=str)
def test_a_tile_divides_the_block_of_the_routing(block_m, tiles):
    assert {one.bm for one in offered(problem(n=7168, k=256, block_m=block_m))} == tiles
