"""Checked mode of the grouped layouts: every promise, broken one at a time, and what no promise covers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.errors import CaptureError, InputError
from chord_jit.routing.grouped import (
    blocks_of,
    check_block_values,
    check_count_values,
    check_offset_values,
    offsets_of,
)

EXPERTS = 4


def blocks(*parts):
    """``m_indices`` of runs: (value, rows)."""
    return torch.cat([torch.full((rows,), value, dtype=torch.int32) for value, rows in parts])


def one(expert, rows=128):
    """One block of an expert with ``rows`` valid rows."""
    return [(expert, rows), (-1, 128 - rows)]


PAD = [(-1, 128)]
GOOD_BLOCKS = {
    "nothing": [(0, 0)],
    "one row": one(3, 1),
    "every expert": [*one(0), *one(1, 5), *one(2, 127), *one(3)],
    "several blocks, the last one cut": [(1, 300), (-1, 84), *one(3)],
    "experts in another order": [*one(3), *one(0, 2)],
    "padding alone": PAD * 3,
    "padding before, between and behind": [*PAD, *one(0, 9), *PAD, *PAD, *one(2), *PAD],
}


@pytest.mark.parametrize("parts", GOOD_BLOCKS.values(), ids=GOOD_BLOCKS)
def test_blocks_that_the_contract_allows(parts):
    check_block_values(blocks(*parts), EXPERTS)


BAD_BLOCKS = {
    "id too large": ([*one(0), (1, 3), (4, 125)], r"an expert of the weight.*\n.*row=131, value=4, experts=4"),
    "id below -1": ([(0, 7), (-2, 121)], r"or -1 on padding.*\n.*row=7, value=-2"),
    "two experts in a block": ([(0, 100), (1, 28)], r"rows of one expert.*\n.*row=100, value=1"),
    "two experts in a later block": ([*one(0), (2, 127), (3, 1)], r"rows of one expert.*\n.*row=255, value=3"),
    "a row behind padding": ([*one(0), (1, 4), (-1, 2), (1, 122)], r"valid rows first.*\n.*row=134, value=1"),
    "a block that opens with padding": ([(-1, 1), (2, 127)], r"valid rows first.*\n.*row=1, value=2"),
    "another expert behind padding": ([(0, 64), (-1, 32), (1, 32)], r"valid rows first.*\n.*row=96, value=1"),
    "an expert in two places": ([*one(0), *one(1), *one(0)], r"must be adjacent.*\n.*row=256, value=0"),
    "padding alone within an expert": ([*one(2), *PAD, *one(2)], r"must be adjacent.*\n.*row=256, value=2"),
    "padding before an expert's end": ([(1, 120), (-1, 8), *one(1)], r"at the end of an expert's rows.*\n.*row=120, value=-1"),
    "the first of two offenders": ([*one(0), *one(1), *one(0), *one(1)], r"must be adjacent.*\n.*row=256, value=0"),
}


@pytest.mark.parametrize("parts, says", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
def test_blocks_that_break_a_promise(parts, says):
    with pytest.raises(InputError, match=says) as caught:
        check_block_values(blocks(*parts), EXPERTS)
    assert caught.value.asked == "check the values of m_indices" and caught.value.remedy


def plainly_right(rows):
    """The contract of ``m_indices``, read word by word."""
    cut = [rows[i : i + 128] for i in range(0, len(rows), 128)]
    owners = [block[0] for block in cut]
    if any(not -1 <= row < EXPERTS for row in rows):
        return False
    for block, following in zip(cut, [*owners, None][1:], strict=True):
        count = sum(row >= 0 for row in block)
        if block != [block[0]] * count + [-1] * (128 - count) or 0 < count < 128 and following == block[0]:
            return False
    starts = [owner for owner, before in zip(owners, [None, *owners], strict=False) if owner >= 0 and owner != before]
    return len(starts) == len(set(starts))


BLOCK = st.builds(lambda expert, rows: one(expert, rows), st.integers(0, 2), st.sampled_from([128, 128, 128, 1, 64]))


@given(st.lists(BLOCK | st.just(PAD), max_size=5), st.none() | st.tuples(st.integers(0, 700), st.sampled_from([-2, -1, 0, 1, 2, EXPERTS])))
def test_accepts_exactly_what_the_plain_contract_accepts(parts, change):
    rows = blocks((0, 0), *(run for part in parts for run in part))
    if change is not None and rows.numel():
        rows[change[0] % rows.numel()] = change[1]
    if plainly_right(rows.tolist()):
        check_block_values(rows, EXPERTS)
    else:
        with pytest.raises(InputError):
            check_block_values(rows, EXPERTS)


# -- offsets ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("offsets", [[0], [0, 0, 0], [0, 10, 10], [0, 3, 3, 7]], ids=str)
def test_offsets_that_the_contract_allows(offsets):
    check_offset_values(torch.tensor(offsets), 10)


BAD_OFFSETS = {
    "first": ([1, 2, 3], r"begin at 0.*\n.*offsets\[0\]=1"),
    "negative first": ([-1, 0, 3], r"begin at 0.*\n.*offsets\[0\]=-1"),
    "decreasing": ([0, 5, 4, 9], "must not decrease.*\n.*entry=2, value=4, rows=10"),
    "negative": ([0, -5, 4], "must not decrease.*\n.*entry=1, value=-5"),
    "past the rows": ([0, 5, 11, 12], "must not pass the rows.*\n.*entry=2, value=11, rows=10"),
    "past int32": ([0, 2**40], f"must not pass the rows.*\n.*entry=1, value={2**40}"),
}


@pytest.mark.parametrize("offsets, says", BAD_OFFSETS.values(), ids=BAD_OFFSETS)
def test_offsets_that_break_a_promise(offsets, says):
    with pytest.raises(InputError, match=says) as caught:
        check_offset_values(torch.tensor(offsets), 10)
    assert caught.value.asked == "check the values of offsets" and caught.value.remedy


# -- counts -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("counts", [[0], [6, 0, 6], [1, 2, 3]], ids=str)
def test_counts_that_the_contract_allows(counts):
    check_count_values(torch.tensor(counts, dtype=torch.int32), 6)


@pytest.mark.parametrize("counts, says", [([0, 7], "expert=1, value=7, max_m=6"), ([-1, 9], "expert=0, value=-1, max_m=6")], ids=str)
def test_counts_that_break_a_promise(counts, says):
    with pytest.raises(InputError, match="masked_m must lie in 0 .. max_m.*\n.*" + says):
        check_count_values(torch.tensor(counts, dtype=torch.int32), 6)


# -- capture ------------------------------------------------------------------------------------------------------------
class Captured(torch.Tensor):
    """A host tensor that says it lies on a GPU."""

    is_cuda = property(lambda self: True)


CHECKS = {
    "m_indices": lambda values: check_block_values(values.repeat(32).int(), EXPERTS),
    "offsets": lambda values: check_offset_values(values, 10),
    "masked_m": lambda values: check_count_values(values.int(), 10),
}


@pytest.mark.parametrize("name, check", CHECKS.items(), ids=CHECKS)
def test_nothing_is_read_back_under_capture(monkeypatch, name, check):
    values = torch.zeros(4, dtype=torch.int64).as_subclass(Captured)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    check(values)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CaptureError, match="checked mode synchronises") as caught:
        check(values)
    assert name in caught.value.asked and name in caught.value.values


# -- builders -----------------------------------------------------------------------------------------------------------
COUNTS = st.lists(st.sampled_from([0, 1, 5, 127, 128, 129, 300]), min_size=1, max_size=EXPERTS)


@given(COUNTS, st.integers(0, 3), st.sampled_from([torch.int32, torch.int64]))
def test_blocks_of_counts(counts, more, dtype):
    given_counts = torch.tensor(counts, dtype=dtype)
    least = blocks_of(given_counts)
    whole = blocks_of(given_counts, least.numel() + 128 * more)
    assert least.dtype == torch.int32 and least.numel() == sum(-(-count // 128) * 128 for count in counts)
    assert torch.equal(whole[: least.numel()], least) and (whole[least.numel() :] == -1).all()
    check_block_values(whole, len(counts))
    assert [int((whole == expert).sum()) for expert in range(len(counts))] == counts


@given(COUNTS, st.sampled_from([torch.int32, torch.int64]))
def test_offsets_of_counts(counts, dtype):
    offsets = offsets_of(torch.tensor(counts, dtype=dtype))
    assert offsets.dtype == torch.int64 and offsets[0] == 0 and offsets.diff().tolist() == counts
    check_offset_values(offsets, sum(counts))
