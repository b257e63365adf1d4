"""Every rule of the one legality function: broken alone, named with its values, and exact at its edge."""

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.schedules.legality import mma_shape, violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.schedules.problems import H200, problem, problems, schedule

FAR = 1 << 30

# rule: the change to a good problem, the change to a good schedule, the only message.
BROKEN = {
    "kernel": ({}, dict(kernel="w4a16"), "kernel w4a16 is unknown"),
    "BM": ({}, dict(bm=24), "BM must be 8 or 16, got 24"),
    "BM below": ({}, dict(bm=0), "BM must be 8 or 16, got 0"),
    "block_m": (dict(block_m=8), dict(bm=16), "BM must divide the routing's block_m, got BM=16 and block_m=8"),
    "block_m odd": (dict(block_m=24), dict(bm=16), "BM must divide the routing's block_m, got BM=16 and block_m=24"),
    "BN": ({}, dict(bn=192), "BN must be a multiple of 128, got 192"),
    "BN below": ({}, dict(bn=0), "BN must be a multiple of 128, got 0"),
    "BK": ({}, dict(bk=96), "BK must be a multiple of 64, got 96"),
    "BK below": ({}, dict(bk=-64), "BK must be a multiple of 64, got -64"),
    "STAGES below": ({}, dict(stages=1), "STAGES must lie in 2..16, got 1"),
    "STAGES above": ({}, dict(stages=17), "STAGES must lie in 2..16, got 17"),
    "CM": ({}, dict(cm=2), "CM and CN must be 1 (this kernel shares nothing by multicast), got CM=2, CN=1"),
    "CN": ({}, dict(cn=2), "CM and CN must be 1 (this kernel shares nothing by multicast), got CM=1, CN=2"),
    "SPLIT below": ({}, dict(split=0), "SPLIT must lie in 1..8, got 0"),
    "SPLIT above": ({}, dict(split=9), "SPLIT must lie in 1..8, got 9"),
    "CTAS": ({}, dict(ctas=3), "CTAS must be 1 or 2, got 3"),
    "CTAS below": ({}, dict(ctas=0), "CTAS must be 1 or 2, got 0"),
    "few warps": ({}, dict(bn=128, bk=128), "BN/128 * BK/64 must be 4 or 8 warps, got 2"),
    "odd warps": ({}, dict(bn=128, bk=384), "BN/128 * BK/64 must be 4 or 8 warps, got 6"),
    "uneven panels": (dict(n=384), dict(bn=256, bk=256), "BN must divide the padded output width, got BN=256 and 384 rows"),
    "stages of K": (dict(k=1024), dict(split=3), "SPLIT must not exceed the stages of K, got SPLIT=3 and 2 stages of 512"),
    "registers": ({}, dict(bn=1024, bk=64, stages=2, ctas=2), "CTAS times warps must not exceed 8 (registers), got 2 * 8"),
}


def check(changes, fields) -> list[str]:
    return violations(problem(**changes), replace(schedule(), **fields))


def test_the_example_is_legal():
    assert check({}, {}) == []


@pytest.mark.parametrize("changes, fields, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_the_only_one_named(changes, fields, message):
    assert check(changes, fields) == [message]


def test_all_broken_rules_are_named_at_once():
    found = check({}, dict(bm=12, stages=1, split=99))
    assert [text.split()[0] for text in found] == ["BM", "STAGES", "SPLIT"]
    found = check(dict(n=384, k=512), dict(bn=256, bk=512, split=2))
    assert [text.split()[0] for text in found] == ["BN/128", "BN", "SPLIT", "CTAS", "shared"]


def test_block_m_is_free_until_a_routing_sets_it():
    assert check(dict(block_m=0), dict(bm=16)) == check(dict(block_m=48), dict(bm=16)) == check(dict(block_m=8), dict(bm=8)) == []


@pytest.mark.parametrize("fields", [
    dict(stages=2), dict(bm=16), dict(split=8), dict(bk=256, stages=2, ctas=2), dict(bn=1024, bk=64), dict(bn=256, bk=128, stages=8),
], ids=str)
def test_the_edge_of_a_rule_is_legal(fields):
    assert check({}, fields) == []


@pytest.mark.parametrize("n, interleaved, rows", [(8, False, 128), (128, False, 128), (136, False, 256), (8, True, 128), (136, True, 256)])
def test_the_output_width_is_counted_in_whole_panels(n, interleaved, rows):
    assert mma_shape(problem(n=n, interleaved=interleaved), schedule()).row_panels * 128 == rows


@pytest.mark.parametrize("k, bk, stages", [(32, 512, 1), (512, 512, 1), (544, 512, 2), (7168, 512, 14), (7168, 256, 28), (1344, 128, 11)])
def test_k_is_counted_in_stages(k, bk, stages):
    assert mma_shape(problem(k=k), schedule(bk=bk)).tile_stages == stages


@pytest.mark.parametrize("fields", [{}, dict(bm=16, stages=2), dict(split=4), dict(bk=256, stages=2, ctas=2)], ids=str)
def test_shared_memory_fits_to_the_byte(fields):
    chosen, base = replace(schedule(), **fields), problem()
    needed = mma_shape(base, chosen).shared_bytes
    one_cta = dict(shared_bytes=needed, shared_per_sm=FAR)
    resident = dict(shared_bytes=FAR, shared_per_sm=chosen.ctas * (needed + 1024))
    for limits in (one_cta, resident):
        assert violations(replace(base, facts=replace(H200, **limits)), chosen) == []
        for name in [name for name, value in limits.items() if value != FAR]:
            tight = replace(H200, **{**limits, name: limits[name] - 1})
            (message,) = violations(replace(base, facts=tight), chosen)
            assert message == f"shared memory must fit {chosen.ctas} CTA(s) an SM, got {needed} of {needed - 1} bytes"


def test_a_deeper_ring_a_taller_tile_and_a_wider_split_take_more_shared_memory():
    size = lambda **fields: mma_shape(problem(), schedule(**fields)).shared_bytes  # noqa: E731
    stage = size(stages=4) - size(stages=3)
    assert 8 * 4608 + 8 * 8 * 128 <= stage <= 8 * 4608 + 8 * 8 * 128 + 512
    assert size(bm=16) > size(bm=8) and size(split=3) - size(split=2) == 8 * 128 * 4


@given(problems(), st.tuples(*[st.integers(-3, 40) | st.sampled_from([64, 128, 256, 512, 1024])] * 8))
def test_any_numbers_get_an_answer(asked, numbers):
    found = violations(asked, Schedule("w4a16_mma", *numbers))
    assert all(isinstance(text, str) and text for text in found) and (found or min(numbers) > 0)


@pytest.mark.parametrize("fields, text", [
    ({}, "w4a16_mma 8x128x512 s3"),
    (dict(bm=16, split=2, ctas=2), "w4a16_mma 16x128x512 s3 split2 ctas2"),
    (dict(cm=2, cn=4), "w4a16_mma 8x128x512 s3 cm2 cn4"),
])
def test_a_schedule_prints_on_one_line(fields, text):
    assert str(replace(schedule(), **fields)) == text


def test_schedules_sort_by_their_fields():
    some = [schedule(split=2), schedule(), schedule(bm=16), schedule(stages=2)]
    assert sorted(some) == sorted(some, key=astuple) and sorted(some)[0] == schedule(stages=2)
