"""The builder against a slow one, over every kind of router output."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from chord_jit.errors import InputError, InputTypeError
from chord_jit.routing.indexed import align_blocks, check_values
from tests.unit.routing.slow_blocks import flatten, slow_blocks


def used(routing):
    padded = int(routing.num_tokens_padded)
    return routing.sorted_ids[:padded].tolist(), routing.expert_ids[: padded // routing.block_m].tolist()


def capacity(total, block_m, experts):
    full = total + experts * (block_m - 1)
    return min(full, total * block_m) if total < experts else full


@st.composite
def routers(draw):
    """topk_ids as lists, block_m, experts and an expert map or None. Ids may repeat within a token and may be -1."""
    experts, block_m = draw(st.integers(1, 12)), draw(st.sampled_from([8, 16, 24, 64]))
    expert_map = draw(st.none() | st.lists(st.integers(-1, experts - 1), min_size=1, max_size=20))
    limit = experts if expert_map is None else len(expert_map)
    top_k = draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(st.integers(-1, limit - 1), min_size=top_k, max_size=top_k), max_size=30))
    return rows, top_k, block_m, experts, expert_map


@given(routers(), st.sampled_from([torch.int32, torch.int64]))
def test_same_blocks_as_the_slow_builder(router, dtype):
    rows, top_k, block_m, experts, expert_map = router
    topk_ids = torch.tensor(rows, dtype=dtype).view(len(rows), top_k)
    mapped = None if expert_map is None else torch.tensor(expert_map, dtype=torch.int32)
    routing = align_blocks(topk_ids, block_m, experts, expert_map=mapped, checked=True)
    total = topk_ids.numel()
    assert used(routing) == flatten(slow_blocks(rows, block_m, experts, expert_map), block_m, total)
    assert routing.sorted_ids.numel() == capacity(total, block_m, experts)
    assert routing.expert_ids.numel() == -(-capacity(total, block_m, experts) // block_m)
    assert {t.dtype for t in (routing.sorted_ids, routing.expert_ids, routing.num_tokens_padded)} == {torch.int32}
    assert (routing.top_k, routing.block_m, routing.routed_rows, routing.experts) == (top_k, block_m, total, experts)
    assert routing.global_experts == max(experts, len(expert_map or []))
    check_values(routing)


# tokens, top_k, experts, block_m, capacity: both allocation rules, and capacities that do and do not divide.
CAPACITIES = [
    (20, 8, 48, 16, 160 + 48 * 15),
    (1, 8, 384, 8, 64),
    (5, 1, 8, 64, 320),
    (8, 1, 8, 64, 8 + 8 * 63),
    (3, 2, 4, 8, 6 + 4 * 7),
]


@pytest.mark.parametrize("tokens, top_k, experts, block_m, expected", CAPACITIES)
def test_capacity_is_what_vllm_allocates(tokens, top_k, experts, block_m, expected):
    routing = align_blocks(torch.arange(tokens * top_k).view(tokens, top_k) % experts, block_m, experts)
    assert routing.sorted_ids.shape == (expected,)
    assert routing.max_blocks == len(routing.expert_ids) == -(-expected // block_m)


def test_a_block_that_ends_at_the_capacity_is_whole():
    routing = align_blocks(torch.zeros(3, 1, dtype=torch.int64), 8, 1)
    assert routing.sorted_ids.tolist() == [0, 1, 2] + [3] * 7
    assert used(routing) == ([0, 1, 2] + [3] * 5, [0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_v48_zero_tokens_make_no_block(dtype):
    routing = align_blocks(torch.empty(0, 8, dtype=dtype), 16, 48, checked=True)
    assert (routing.routed_rows, int(routing.num_tokens_padded), routing.max_blocks) == (0, 0, 0)
    check_values(routing)


def test_only_ids_of_no_expert_make_no_block():
    routing = align_blocks(torch.full((4, 2), -1), 8, 3)
    assert int(routing.num_tokens_padded) == 0 and routing.routed_rows == 8 and routing.max_blocks > 0
    check_values(routing)


# What an unchecked builder leaves out: values that a checked one refuses. 2**32 would be expert 0 if it were cut to 32 bits.
STRAYS = [-2, 4, 2**31, 2**32, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("mapped", [False, True])
def test_v50_ids_out_of_range_are_left_out_or_refused(stray, mapped):
    topk_ids = torch.tensor([[1, stray], [3, 1]])
    expert_map = torch.tensor([3, 2, 1, 0], dtype=torch.int32) if mapped else None
    expected = [(0, [2]), (2, [0, 3])] if mapped else [(1, [0, 3]), (3, [2])]
    assert used(align_blocks(topk_ids, 8, 4, expert_map=expert_map)) == flatten(expected, 8, 4)
    with pytest.raises(InputError, match=f"index=1, value={stray}, limit=4"):
        align_blocks(topk_ids, 8, 4, expert_map=expert_map, checked=True)


def test_map_entries_out_of_range_are_left_out_or_refused():
    expert_map = torch.tensor([0, 7, -5, 1], dtype=torch.int32)
    topk_ids = torch.tensor([[0, 1, 2, 3]])
    assert used(align_blocks(topk_ids, 8, 2, expert_map=expert_map)) == flatten([(0, [0]), (1, [3])], 8, 4)
    with pytest.raises(InputError, match="expert_map.*\n.*index=1, value=7, limit=2"):
        align_blocks(topk_ids, 8, 2, expert_map=expert_map, checked=True)


def test_ranks_of_expert_parallelism_share_the_rows_out():
    topk_ids = torch.randint(12, (40, 3), generator=torch.Generator().manual_seed(12))
    seen = []
    for rank in range(3):
        expert_map = torch.full((12,), -1, dtype=torch.int32)
        expert_map[rank * 4 : rank * 4 + 4] = torch.arange(4, dtype=torch.int32)
        slots, experts = used(align_blocks(topk_ids, 8, 4, expert_map=expert_map))
        for slot, row in enumerate(slots):
            if row < 120:
                assert topk_ids.view(-1)[row] == rank * 4 + experts[slot // 8]
                seen.append(row)
    assert sorted(seen) == list(range(120))


def test_strided_ids_are_read_in_logical_order():
    wide = torch.tensor([[0, 9, 1], [2, 9, 0], [1, 9, 1]])
    assert used(align_blocks(wide[:, ::2], 8, 3)) == used(align_blocks(wide[:, ::2].contiguous(), 8, 3))


def test_input_is_left_alone():
    topk_ids, expert_map = torch.tensor([[0, -1], [5, 2]]), torch.tensor([1, -1, 0], dtype=torch.int32)
    kept = topk_ids.clone(), expert_map.clone()
    align_blocks(topk_ids, 8, 2, expert_map=expert_map)
    assert torch.equal(topk_ids, kept[0]) and torch.equal(expert_map, kept[1])


class Calls(TorchDispatchMode):
    """Names of the operators that run inside."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# Operators whose result or its shape the host must read from the device; ``index`` would with a boolean mask.
READ_BACK = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique_dim", "_unique2", "index", "repeat_interleave"}


@pytest.mark.parametrize("checked", [False, True])
def test_only_a_checked_builder_reads_values_back(checked):
    topk_ids, expert_map = torch.tensor([[0, 8, 3], [1, 1, -1]]), torch.arange(9, dtype=torch.int32) % 4
    with Calls() as calls:
        align_blocks(topk_ids, 8, 4, expert_map=expert_map, checked=checked)
    assert bool(calls.names & READ_BACK) == checked, calls.names


IDS = torch.zeros(2, 2, dtype=torch.int32)
MAP = torch.zeros(4, dtype=torch.int32)
REFUSED = [
    ("list", InputTypeError, "int32 or int64 tensor", dict(topk_ids=[[0, 1]])),
    ("float ids", InputTypeError, "got=torch.float32", dict(topk_ids=IDS.float())),
    ("1-D ids", InputError, r"shape=\[4\]", dict(topk_ids=IDS.view(4))),
    ("no top_k", InputError, r"shape=\[2, 0\]", dict(topk_ids=IDS[:, :0])),
    ("block 0", InputError, "block_m must be 8 or more", dict(block_m=0)),
    ("block 12", InputError, "multiple of 8", dict(block_m=12)),
    ("block 8.0", InputTypeError, "block_m must be an int", dict(block_m=8.0)),
    ("block True", InputTypeError, "block_m must be an int", dict(block_m=True)),
    ("no expert", InputError, "experts must be 1 or more", dict(experts=0)),
    ("too many slots", InputError, "fit in int32", dict(topk_ids=IDS[:1, :1].expand(600_000, 1), block_m=4096, experts=600_000)),
    ("map as list", InputTypeError, "expert_map must be an int32", dict(expert_map=[0, 1])),
    ("int64 map", InputTypeError, "got=torch.int64", dict(expert_map=MAP.long())),
    ("2-D map", InputError, "global experts", dict(expert_map=MAP.view(2, 2))),
    ("empty map", InputError, "global experts", dict(expert_map=MAP[:0])),
    ("map elsewhere", InputError, "one device", dict(expert_map=MAP.to("meta"))),
]


@pytest.mark.parametrize("error, says, change", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_input_is_refused(error, says, change):
    call = {"topk_ids": IDS, "block_m": 8, "experts": 4, **change}
    with pytest.raises(error, match=says) as caught:
        align_blocks(**call)
    assert caught.value.asked == "align routed ids to blocks" and caught.value.remedy and caught.value.values
