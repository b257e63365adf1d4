"""Checked mode: every promise of the contract, broken one at a time, and what no promise covers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chord_jit.errors import InputError
from chord_jit.routing.indexed import IndexedRouting, check_values


def routing(slots, experts, padded, *, rows=10, block_m=8, count=4):
    tensors = (torch.tensor(values, dtype=torch.int32) for values in (slots, experts, [padded]))
    return IndexedRouting(*tensors, 2, block_m, rows, count)


S = 10  # the sentinel: any id of routed_rows or more
FIRST, SECOND = [4, 1, 9, S, S, S, S, S], [0, 2, 3, 5, 6, 7, 8, S]

# What a host may hand over: id order, sentinel values, empty blocks, garbage past the count, a last block cut short.
ACCEPTED = [
    ("plain", FIRST + SECOND, [1, 3], 16),
    ("sentinels of any size", [0, 2**31 - 1, S, S + 3, S, S, S, S], [0], 8),
    ("an empty block", [S] * 8 + FIRST, [2, 2], 16),
    ("one expert in two blocks", FIRST + SECOND, [3, 3], 16),
    ("garbage past the count", FIRST + [-7, 4, 4, 4, 2**31 - 1, -(2**31), 0, 0], [1, -99], 8),
    ("nothing in use", [-1] * 16, [77, -3], 0),
    ("last block cut by the capacity", FIRST + [0, 2, 3], [1, 3], 16),
]


@pytest.mark.parametrize("slots, experts, padded", [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_what_the_contract_allows_is_accepted(slots, experts, padded):
    check_values(routing(slots, experts, padded))


BROKEN = [
    ("count no multiple", FIRST + SECOND, [1, 3], 12, "multiple of block_m.*\n.*num_tokens_padded=12"),
    ("count negative", FIRST + SECOND, [1, 3], -8, "num_tokens_padded=-8"),
    ("count past the capacity", FIRST + SECOND, [1, 3, 0], 24, "num_tokens_padded=24, block_m=8, capacity=16, most=16"),
    ("expert too large", FIRST + SECOND, [1, 4], 16, r"\[0, experts\).*\n.*block=1, value=4, experts=4"),
    ("expert -1", FIRST + SECOND, [-1, 9], 16, "block=0, value=-1"),
    ("negative id", FIRST + [0, -5, -6, S, S, S, S, S], [1, 3], 16, "negative.*\n.*slot=9, value=-5"),
    ("valid after a sentinel", FIRST + [0, S, 2, 3, S, S, S, S], [1, 3], 16, "valid ids first.*\n.*slot=10, value=2"),
    ("valid at the end", [S, S, S, S, S, S, S, 0], [1], 8, "valid ids first.*\n.*slot=7, value=0"),
    ("twice in a block", [4, 1, 4, S, S, S, S, S], [1], 8, "once.*\n.*slot=2, value=4, routed_rows=10"),
    ("twice in two blocks", FIRST + [0, 2, 9, 1, S, S, S, S], [1, 3], 16, "once.*\n.*slot=10, value=9"),
    ("twice in the cut block", FIRST + [0, 4], [1, 3], 16, "once.*\n.*slot=9, value=4"),
]


@pytest.mark.parametrize("slots, experts, padded, says", [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_each_broken_promise_is_named_with_its_first_offender(slots, experts, padded, says):
    with pytest.raises(InputError, match=says) as caught:
        check_values(routing(slots, experts, padded))
    assert caught.value.asked == "check the values of indexed routing" and caught.value.remedy


def plainly_right(slots, rows, block_m):
    """The contract of the slots in use, read word by word."""
    named = [slot for slot in slots if slot < rows]
    blocks = [slots[i : i + block_m] for i in range(0, len(slots), block_m)]
    prefixes = all(a < rows or b >= rows for block in blocks for a, b in zip(block, block[1:], strict=False))
    return min(slots, default=0) >= 0 and len(named) == len(set(named)) and prefixes


GOOD_BLOCK, NEGATIVE = [4, 5, S, S, S, S, S, S], [S, -1, S, S, S, S, S, S]


@given(st.lists(st.permutations([0, 1, 2, 3, S, S, S, S]) | st.sampled_from([GOOD_BLOCK, [S] * 8, NEGATIVE]), max_size=3))
def test_accepts_exactly_what_the_plain_contract_accepts(blocks):
    slots = [slot for block in blocks for slot in block]
    checked = routing(slots, [0] * len(blocks), len(slots))
    if plainly_right(slots, 10, 8):
        check_values(checked)
    else:
        with pytest.raises(InputError):
            check_values(checked)
