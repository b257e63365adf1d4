"""Every rule of w4a16_wgmma: broken alone, named with its values, exact at its edge; and what is offered for timing."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit import device
from chord_jit.families.grouped import FAMILY
from chord_jit.families.indexed import FAMILY as INDEXED
from chord_jit.jit import slots
from chord_jit.schedules import wgmma
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.schedules.problems import H200, LAYOUTS, SM_COUNTS, grouped, grouped_problems, problem, wgmma_schedule

FAR = 1 << 30

# rule: the change to a good problem, the change to a good schedule, the only message (lists of tiles as a pattern).
BROKEN = {
    "Blackwell": (dict(arch="sm_100a"), {}, "kernel w4a16_wgmma runs on sm_90a only, got sm_100a"),
    "BN": ({}, dict(bn=192), r"BN must be one of 128, 256, 512, got 192"),
    "BN below": ({}, dict(bn=0), r"BN must be one of 128, 256, 512, got 0"),
    "BM": ({}, dict(bm=24), r"BM must be one of [\d, ]*64[\d, ]* at BN=128, got 24"),
    "BM below": ({}, dict(bm=0), r"BM must be one of [\d, ]* at BN=128, got 0"),
    "BM of wider outputs": ({}, dict(bm=256, bn=256), r"BM must be one of [\d, ]*128[\d, ]* at BN=256, got 256"),
    "BM of the widest": ({}, dict(bm=128, bn=512), r"BM must be one of 16, 32[\d, ]* at BN=512, got 128"),
    "BK": ({}, dict(bk=96), "BK must be 64, 128 or 256, got 96"),
    "BK above": ({}, dict(bk=512), "BK must be 64, 128 or 256, got 512"),
    "STAGES below": ({}, dict(stages=1), r"STAGES must lie in 2\.\.16, got 1"),
    "STAGES above": ({}, dict(bk=64, stages=17), r"STAGES must lie in 2\.\.16, got 17"),
    "CM": ({}, dict(cm=2), r"CM .*must be 1.*, got CM=2, CN=1"),
    "CN": ({}, dict(cn=4), r"CM .*must be 1.*, got CM=1, CN=4"),
    "SPLIT below": ({}, dict(split=0), r"SPLIT must be 1 or 2 \(2 cuts the tiles of the last waves along K\), got 0"),
    "SPLIT above": ({}, dict(split=3), r"SPLIT must be 1 or 2 \(2 cuts the tiles of the last waves along K\), got 3"),
    "joints": (dict(sms=353), dict(split=2), "SPLIT must be 1 with more than 704 warpgroups, got SPLIT=2 and 706 warpgroups"),
    "joints of two CTAs": (
        dict(sms=177), dict(bm=16, bn=256, bk=64, split=2, ctas=2),
        "SPLIT must be 1 with more than 704 warpgroups, got SPLIT=2 and 708 warpgroups",
    ),
    "CTAS": ({}, dict(ctas=2), r"CTAS must be 1, or 2 at BM=16 and BN=256 \(registers\), got 2"),
    "CTAS of a tall tile": ({}, dict(bm=48, bn=256, ctas=2), r"CTAS must be 1, or 2 at BM=16 and BN=256 \(registers\), got 2"),
    "CTAS above": ({}, dict(bm=32, bn=256, ctas=3), r"CTAS must be 1, or 2 at BM=16 and BN=256 \(registers\), got 3"),
    "blocks": (dict(layout="blocks"), dict(bm=48, bn=256), "BM must divide the blocks of 128 rows or be two of them, got 48"),
    "uneven panels": (dict(n=384), dict(bn=256), "BN .*must divide the padded output width, got BN=256.* and 384 rows"),
    "uneven K": (dict(k=192), {}, "BK must divide the padded K, got BK=128 and K=192"),
    "shared memory": ({}, dict(bm=256, bk=256), r"shared memory must fit 1 CTA\(s\) an SM, got \d+ of 232448 bytes"),
    "shared memory of two": (
        {}, dict(bm=16, bn=256, bk=256, stages=3, ctas=2), r"shared memory must fit 2 CTA\(s\) an SM, got \d+ of 115712 bytes",
    ),
}


def check(changes, fields) -> list[str]:
    return violations(grouped(**changes), replace(wgmma_schedule(), **fields))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sms", SM_COUNTS)
def test_the_example_is_legal(layout, sms):
    assert check(dict(layout=layout, sms=sms), {}) == check(dict(layout=layout, sms=sms), dict(split=2)) == []


@pytest.mark.parametrize("changes, fields, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_the_only_one_named(changes, fields, message):
    (found,) = check(changes, fields)
    assert re.fullmatch(message, found)


def test_all_broken_rules_are_named_at_once():
    found = check(dict(layout="blocks"), dict(bm=12, bk=32, stages=1, split=99, ctas=4))
    assert [text.split()[0] for text in found] == ["BM", "BK", "STAGES", "SPLIT", "CTAS", "BM"]
    found = check(dict(n=384, k=192), dict(bm=128, bn=256, stages=4))
    assert [text.split()[0] for text in found] == ["BN", "BK", "shared"]


@pytest.mark.parametrize("changes, fields", [
    (dict(sms=352), dict(split=2)), (dict(sms=176), dict(bm=16, bn=256, bk=64, split=2, ctas=2)), (dict(sms=500), {}),
    ({}, dict(bk=64, stages=16)), ({}, dict(stages=2)),
    (dict(n=8, k=32), dict(bk=64)), (dict(k=160), dict(bk=64)), (dict(layout="blocks"), dict(bm=256, bk=64, stages=2)),
    (dict(layout="masked"), dict(bm=48, bn=256)),
], ids=str)
def test_the_edge_of_a_rule_is_legal(changes, fields):
    assert check(changes, fields) == []


def test_v54_the_joints_of_a_launch_fit_a_slot():
    """Two bits each, in whole words; four warpgroups on every SM that there is."""
    assert -(-wgmma.MAX_JOINTS * 2 // 32) * 4 <= slots._STRIDE - slots.JOINTS_AT and max(SM_COUNTS) * 4 <= wgmma.MAX_JOINTS


# -- sizes --------------------------------------------------------------------------------------------------------------
# Rows and weights of a stage times stages, staging, 32 bytes a record, 16 a stage of barriers, 16 of roles; by hand.
SHARED = {
    "256x128x64 s4": 4 * (256 * 128 + 4608) + 2 * 256 * 144 + 5 * 32 + 4 * 16 + 16,
    "128x256x128 s3": 3 * 2 * (128 * 128 + 2 * 4608) + 2 * 128 * 272 + 4 * 32 + 3 * 16 + 16,
    "64x256x128 s5": 5 * 2 * (64 * 128 + 2 * 4608) + 2 * 64 * 272 + 6 * 32 + 5 * 16 + 16,
    "16x512x128 s3": 3 * 2 * (16 * 128 + 4 * 4608) + 4 * 16 * 272 + 4 * 32 + 3 * 16 + 16,
}


def named(text: str) -> Schedule:
    tile, stages = text.split()
    return wgmma_schedule(*map(int, tile.split("x")), int(stages[1:]))


@pytest.mark.parametrize("text", SHARED)
def test_shared_memory_is_counted_by_hand(text):
    assert wgmma.shape(grouped(), named(text)).shared_bytes == SHARED[text] <= H200.shared_bytes


@pytest.mark.parametrize("text", SHARED)
def test_swiglu_halves_the_staging(text):
    fused, plain = (wgmma.shape(grouped(interleaved=True, swiglu=swiglu), named(text)) for swiglu in (True, False))
    columns = 32 * fused.staged
    saved = fused.consumers * named(text).bm * (columns * 2 if plain.staged == fused.staged else 0)
    assert plain.shared_bytes - fused.shared_bytes == saved


@pytest.mark.parametrize("text, consumers, owned", [("256x128x64 s4", 2, 1), ("128x256x128 s3", 2, 2), ("16x512x128 s3", 4, 2)])
def test_a_tile_is_shared_out_among_warpgroups(text, consumers, owned):
    sizes = wgmma.shape(grouped(), named(text))
    assert (sizes.consumers, sizes.threads, sizes.staged) == (consumers, 128 * (consumers + 1), owned)
    assert sizes.consumers * owned * 64 == named(text).bn == sizes.panels * 128


@pytest.mark.parametrize("fields", [
    {}, dict(bm=128, bn=256, stages=3), dict(bm=16, bn=512, stages=3), dict(bm=16, bn=256, bk=64, ctas=2),
], ids=str)
@pytest.mark.parametrize("per_sm", [False, True])
def test_shared_memory_fits_to_the_byte(fields, per_sm):
    """Where the staging of all blocks does not fit, they are staged one by one; below that the schedule is refused."""
    chosen, base = replace(wgmma_schedule(), **fields), grouped()

    def on(most: int):
        limits = dict(shared_bytes=FAR, shared_per_sm=chosen.ctas * (most + 1024)) if per_sm else dict(shared_bytes=most, shared_per_sm=FAR)
        return replace(base, facts=replace(H200, **limits))

    whole = wgmma.shape(on(FAR), chosen)
    tight = wgmma.shape(on(whole.shared_bytes - 1), chosen)
    assert tight.staged == 1 and (tight.shared_bytes < whole.shared_bytes) == (whole.staged == 2)
    assert violations(on(tight.shared_bytes), chosen) == []
    (message,) = violations(on(tight.shared_bytes - 1), chosen)
    assert message == f"shared memory must fit {chosen.ctas} CTA(s) an SM, got {tight.shared_bytes} of {tight.shared_bytes - 1} bytes"


@pytest.mark.parametrize("n, interleaved, rows", [(8, False, 128), (128, False, 128), (136, False, 256), (8, True, 128), (136, True, 256)])
def test_the_output_width_is_counted_in_whole_panels(n, interleaved, rows):
    assert wgmma.shape(grouped(n=n, interleaved=interleaved), wgmma_schedule()).row_panels * 128 == rows


@pytest.mark.parametrize("k, bk, stages", [(32, 64, 1), (96, 128, 1), (128, 64, 2), (7168, 128, 56), (1344, 64, 21)])
def test_k_is_counted_in_stages(k, bk, stages):
    assert wgmma.shape(grouped(k=k), wgmma_schedule(bk=bk)).tile_stages == stages


def check_sizes(asked, one: Schedule) -> None:
    sizes = wgmma.shape(asked, one)
    owned = one.bn // 64 // sizes.consumers
    assert list(sizes.widths) == sorted(set(sizes.widths)) and sizes.widths[-1] == one.bm
    assert all(width % 16 == 0 and width <= 256 for width in sizes.widths)
    assert owned * one.bm <= 320, "the sums of a thread must leave registers for fragments"
    assert one.bm % sizes.box_rows == 0 and sizes.box_rows % 8 == 0 and sizes.box_rows <= 256
    assert 4 % sizes.group_steps == 0 and 4 // sizes.group_steps * sizes.stage_blocks % 2 == 0
    assert sizes.staged in (1, owned) and sizes.shared_bytes <= wgmma.shared_limit(asked, one)
    assert sizes.sums_bytes == one.bm * one.bn * 4 and sizes.tile_stages * sizes.stage_blocks == sizes.k_blocks
    assert asked.layout != "blocks" or 128 % one.bm == 0 or one.bm == 256


@given(grouped_problems(tuple(sorted(device.TARGETS))), st.tuples(*[st.integers(-3, 40) | st.sampled_from([48, 64, 128, 256, 512])] * 8))
def test_any_numbers_get_an_answer(asked, numbers):
    one = Schedule("w4a16_wgmma", *numbers)
    found = violations(asked, one)
    assert all(isinstance(text, str) and text for text in found)
    if not found:
        check_sizes(asked, one)


# -- candidates ---------------------------------------------------------------------------------------------------------
@given(grouped_problems(tuple(sorted(device.TARGETS))))
def test_every_candidate_is_legal_and_offered_once(asked):
    offered = FAMILY.candidates(asked)
    assert 0 < len(set(offered)) == len(offered) <= 600
    for one in offered:
        assert violations(asked, one) == []
        if one.kernel == "w4a16_wgmma":
            check_sizes(asked, one)
    assert asked.facts.arch == "sm_90a" or {one.kernel for one in offered} == {"w4a16_mma"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_kernels_compete_on_hopper(layout):
    offered = FAMILY.candidates(grouped(n=4096, k=7168, layout=layout))
    assert {one.kernel for one in offered} == {"w4a16_wgmma", "w4a16_mma"}
    assert {1, 2} == {one.split for one in offered if one.kernel == "w4a16_wgmma"}


def test_the_rows_of_a_call_do_not_change_what_is_offered():
    assert FAMILY.candidates(grouped(rows=1)) is FAMILY.candidates(grouped(rows=1024))


# -- gathered rows ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block_m, legal", [
    (0, (16, 32, 48, 64, 96, 128, 160)), (8, ()), (16, (16,)), (48, (16, 48)), (64, (16, 32, 64)), (96, (16, 32, 48, 96)),
    (128, (16, 32, 64, 128)), (192, (16, 32, 48, 64, 96)), (320, (16, 32, 64, 160)),
], ids=str)
def test_a_tile_of_gathered_rows_divides_the_block_of_the_routing(block_m, legal):
    asked, rule = problem(n=512, block_m=block_m), "BM must divide the routing's block_m, got BM={} and block_m={}"
    for bm in (16, 32, 48, 64, 96, 128, 160):
        found = violations(asked, wgmma_schedule(bm, 256, stages=2))
        assert found == ([] if bm in legal else [rule.format(bm, block_m)]), bm
    offered = {one.bm for one in INDEXED.candidates(asked) if one.kernel == "w4a16_wgmma"}
    assert offered == {bm for bm in legal if bm <= 128}, "taller ones are left to overrides"


@pytest.mark.parametrize("cn", [2, 4])
def test_gathered_rows_are_shared_with_no_other_cta(cn):
    """The tensor copy engine cannot gather, so there is nothing to multicast."""
    found = violations(problem(n=512), wgmma_schedule(64, 128, cn=cn))
    assert found and all(text.startswith(("CN must be 1 on indexed rows", "CM must be 1 and CN 1 or 2")) for text in found)
    assert violations(grouped(n=512), wgmma_schedule(64, 128, cn=2)) == []
    assert {one.cn for one in INDEXED.candidates(problem(n=512))} == {1}


def test_lists_of_gathered_rows_take_shared_memory():
    """Each record of a tile names the source row, the routed row and the weight of every row: 12 bytes, and a bit of room."""
    tile = wgmma_schedule(64, 256)
    more = wgmma.shape(problem(), tile).shared_bytes - wgmma.shape(grouped(), tile).shared_bytes
    assert 0 <= more - (tile.stages + 1) * 64 * 12 <= (tile.stages + 1) * 16
