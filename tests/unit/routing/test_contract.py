"""Everything that metadata can prove is proved when a routing is made."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.routing.indexed import IndexedRouting, align_blocks, check_trusted

GOOD = dict(
    sorted_ids=torch.tensor([0, 3, 6, 6, 6, 6, 6, 6, 1, 2], dtype=torch.int32),
    expert_ids=torch.tensor([2, 0], dtype=torch.int32),
    num_tokens_padded=torch.tensor([8], dtype=torch.int32),
    top_k=2,
    block_m=8,
    routed_rows=6,
    experts=4,
)


def ints(count):
    return torch.zeros(count, dtype=torch.int32)


def test_a_host_may_hand_over_its_own_buffers():
    routing = IndexedRouting(**GOOD)
    assert routing.sorted_ids is GOOD["sorted_ids"] and routing.device == torch.device("cpu") and routing.max_blocks == 2


@pytest.mark.parametrize("count", [torch.tensor(8, dtype=torch.int32), torch.tensor([8], dtype=torch.int32)], ids=["0-D", "[1]"])
def test_the_padded_count_is_0d_or_one_long(count):
    assert IndexedRouting(**{**GOOD, "num_tokens_padded": count}).num_tokens_padded is count


def test_expert_ids_may_be_longer_than_needed():
    assert IndexedRouting(**{**GOOD, "expert_ids": ints(100)}).max_blocks == 2


REFUSED = [
    ("sorted_ids a list", InputTypeError, "sorted_ids must be a tensor", dict(sorted_ids=[0, 1])),
    ("expert_ids None", InputTypeError, "expert_ids must be a tensor", dict(expert_ids=None)),
    ("padded an int", InputTypeError, "num_tokens_padded must be a tensor", dict(num_tokens_padded=8)),
    ("int64 ids", InputTypeError, "sorted_ids must be int32.*\n.*int64", dict(sorted_ids=ints(10).long())),
    ("uint8 experts", InputTypeError, "expert_ids must be int32", dict(expert_ids=ints(2).byte())),
    ("int64 padded", InputTypeError, "num_tokens_padded must be int32", dict(num_tokens_padded=ints(1).long())),
    ("2-D ids", InputError, "sorted_ids must be 1-D", dict(sorted_ids=ints(10).view(2, 5))),
    ("0-D experts", InputError, "expert_ids must be 1-D", dict(expert_ids=ints(1)[0])),
    ("two counts", InputError, r"0-D or \[1\]", dict(num_tokens_padded=ints(2))),
    ("no count", InputError, r"0-D or \[1\]", dict(num_tokens_padded=ints(0))),
    ("2-D count", InputError, r"0-D or \[1\]", dict(num_tokens_padded=ints(1).view(1, 1))),
    ("strided ids", InputError, "sorted_ids must be contiguous", dict(sorted_ids=ints(20)[::2])),
    ("strided experts", InputError, "expert_ids must be contiguous", dict(expert_ids=ints(4)[::2])),
    ("ids elsewhere", InputError, "one device", dict(sorted_ids=ints(10).to("meta"))),
    ("experts elsewhere", InputError, "one device", dict(expert_ids=ints(2).to("meta"))),
    ("padded elsewhere", InputError, "one device", dict(num_tokens_padded=ints(1).to("meta"))),
    ("too few experts", InputError, "expert for every block.*\n.*expert_ids=1, blocks=2", dict(expert_ids=ints(1))),
    ("top_k 0", InputError, "top_k must be 1 or more", dict(top_k=0)),
    ("top_k a str", InputTypeError, "top_k must be an int", dict(top_k="2")),
    ("block_m 4", InputError, "block_m must be 8 or more", dict(block_m=4)),
    ("block_m 20", InputError, "multiple of 8", dict(block_m=20)),
    ("block_m 4104", InputError, "4096 at most", dict(block_m=4104)),
    ("block_m True", InputTypeError, "block_m must be an int", dict(block_m=True)),
    ("negative rows", InputError, "routed_rows must be 0 or more", dict(routed_rows=-2)),
    ("rows past int32", InputError, "fit in int32", dict(routed_rows=2**31)),
    ("rows no multiple", InputError, "activation rows x top_k.*\n.*routed_rows=7", dict(routed_rows=7)),
    ("rows a tensor", InputTypeError, "routed_rows must be an int", dict(routed_rows=torch.tensor(6))),
    ("no experts", InputError, "experts must be 1 or more", dict(experts=0)),
    ("fewer experts in all", InputError, "global_experts=3, experts=4", dict(global_experts=3)),
    ("experts in all a float", InputTypeError, "global_experts must be an int", dict(global_experts=384.0)),
]


@pytest.mark.parametrize("error, says, change", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_metadata_is_refused(error, says, change):
    with pytest.raises(error, match=says) as caught:
        IndexedRouting(**{**GOOD, **change})
    assert caught.value.asked == "describe indexed routing" and caught.value.remedy and caught.value.values


def test_a_routing_that_fits_its_call_is_trusted():
    check_trusted(IndexedRouting(**GOOD), rows=3, experts=4, device=torch.device("cpu"))


MISFITS = [
    ("rows", InputError, "rows=4, top_k=2", dict(rows=4)),
    ("experts", InputError, "routing=4, weight=5", dict(experts=5)),
    ("device", InputError, "routing=cpu, activations=meta", dict(device=torch.device("meta"))),
]


@pytest.mark.parametrize("error, says, change", [case[1:] for case in MISFITS], ids=[case[0] for case in MISFITS])
def test_a_routing_of_another_call_is_refused(error, says, change):
    with pytest.raises(error, match=says):
        check_trusted(IndexedRouting(**GOOD), **{"rows": 3, "experts": 4, "device": torch.device("cpu"), **change})


def test_what_is_no_routing_is_refused():
    with pytest.raises(InputTypeError, match="type=tuple"):
        check_trusted((GOOD["sorted_ids"], GOOD["expert_ids"]), rows=3, experts=4, device=torch.device("cpu"))


def test_down_takes_the_same_blocks_with_one_row_per_id():
    routing = align_blocks(torch.tensor([[0, 2], [2, 1], [0, 1]]), 8, 4)
    down = routing.for_down()
    assert (down.top_k, down.routed_rows, down.block_m, down.experts) == (1, 6, 8, 4)
    assert down.sorted_ids is routing.sorted_ids and down.expert_ids is routing.expert_ids
    check_trusted(down, rows=6, experts=4, device=routing.device)
    with pytest.raises(InputError, match="for_down"):
        check_trusted(routing, rows=6, experts=4, device=routing.device)


def test_a_trusted_routing_says_all_that_a_checked_one_does():
    checked, trusted = (make(**GOOD, global_experts=9) for make in (IndexedRouting, IndexedRouting.trusted))
    assert vars(trusted) == vars(checked) and trusted.place == checked.place and trusted.for_down().place == checked.place
    with pytest.raises(FrozenInstanceError):
        trusted.top_k = 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda routing: pickle.loads(pickle.dumps(routing))], ids=["deepcopy", "pickle"])
def test_a_copy_tells_launches_of_its_own_buffers(copied):
    """Made after a launch, which has read where the original's buffers lie."""
    routing = IndexedRouting(**GOOD)
    assert routing.place[1] == routing.sorted_ids.data_ptr()
    other = copied(routing)
    assert other.place[1:4] == tuple(getattr(other, name).data_ptr() for name in ("sorted_ids", "expert_ids", "num_tokens_padded"))
    assert other.place[1] != routing.place[1] and routing.for_down().place == routing.place


def test_experts_of_the_model_are_the_local_ones_unless_told():
    assert IndexedRouting(**GOOD).global_experts == 4
    assert IndexedRouting(**GOOD, global_experts=384).for_down().global_experts == 384


def test_a_routing_is_frozen_and_prints_without_reading_its_buffers():
    routing = IndexedRouting(**{**GOOD, **{name: GOOD[name].to("meta") for name in ("sorted_ids", "expert_ids", "num_tokens_padded")}})
    assert "routed_rows=6" in repr(routing) and "device=meta" in repr(routing)
    with pytest.raises(FrozenInstanceError):
        routing.top_k = 1
