"""What the routing contract promises: who is never read, who is never written, and calls that have nothing to do."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import IndexedRouting, PackedW4A16, align_blocks, counters
from chord_jit.errors import InputError
from tests.gpu.cases import Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import CUT, SHORT, named
from tests.gpu.routers import valid_ids
from tests.gpu.tensors import POISON, bits, fenced, fenced_out, generator_of, weight_of
from tests.gpu.workload import Work, build, forced

CASE = Case(8, 384, 192, 12, 2, 16, "dropped")
#: By both kernels, the second in blocks of two tiles.
WAYS = [(CASE, None), (replace(CASE, block_m=64), SHORT)]
BESIDE_NAN = [(Case(8, n, k, 9, 2, 8), None) for n, k in ((72, 96), (384, 192), (768, 1344))]
BESIDE_NAN += [(Case(8, n, k, 200, 2, 64), CUT) for n, k in ((72, 96), (384, 192))]
GATE_UP = Case(8, 768, 256, 20, 2, 16, "ep", interleaved=True, swiglu=True)
DOWN = Case(8, 256, 384, 40, 1, 16, "ep", weighted=True)
KERNELS = [(GATE_UP, None), (DOWN, None), *WAYS]


@pytest.fixture(params=[pytest.param(how, id=f"{how or 'chosen'}") for how in WAYS])
def work(request, gpu, seed):
    """A call of each kernel; within the test its calls take that one."""
    case, schedule = request.param
    with forced(schedule):
        yield build(case, gpu, seed)


@pytest.mark.quick
def test_result_is_allocated_where_none_is_given(work, gpu):
    out, given = work.call(), work.fenced_call()
    assert (out.dtype, out.shape, out.device) == (torch.bfloat16, (24, 384), gpu)
    named = valid_ids(work.routing)
    assert torch.equal(out[named], given[named])


@pytest.mark.quick
def test_v48_zero_tokens_give_an_empty_result_and_launch_nothing(gpu, no_launch):
    """No other test uses this shape: not even a kernel is built or loaded."""
    weight = weight_of(2, 136, 352, True, gpu)
    routing = align_blocks(torch.empty(0, 3, dtype=torch.int64, device=gpu), 8, 2)
    x, before = torch.empty(0, 352, dtype=torch.bfloat16, device=gpu), counters()
    for swiglu, columns in ((False, 136), (True, 68)):
        assert chord_jit.indexed(x, weight, routing, swiglu=swiglu, checked=True).shape == (0, columns)
        out = torch.empty(0, columns, dtype=torch.bfloat16, device=gpu)
        assert chord_jit.indexed(x, weight, routing, swiglu=swiglu, out=out) is out
    assert counters() == before


@pytest.mark.quick
def test_v48_zero_valid_blocks_write_nothing(work, gpu):
    routing = align_blocks(torch.full((12, 2), -1, device=gpu), work.routing.block_m, 8)
    routing.sorted_ids.copy_(torch.arange(len(routing.sorted_ids), device=gpu) % 24)
    routing.expert_ids.zero_()
    out = replace(work, routing=routing).fenced_call(checked=True)
    assert bool((out.view(torch.int16) == POISON).all())


def test_a_host_made_routing_with_a_0d_count_and_shuffled_ids(work):
    """Ids of a block in any order, expert blocks in any order, an empty block in between: same rows, same bits."""
    made, block_m = work.routing, work.routing.block_m
    blocks = int(made.num_tokens_padded) // block_m
    ids = made.sorted_ids[: blocks * block_m].view(blocks, block_m)
    counts = (ids < made.routed_rows).sum(1)
    turned = torch.stack([torch.cat((row[:count].flip(0), row[count:])) for row, count in zip(ids, counts.tolist(), strict=True)])
    empty = torch.full((1, block_m), 99, dtype=torch.int32, device=ids.device)
    order = torch.randperm(blocks, device=ids.device)
    routing = IndexedRouting(
        torch.cat((turned[order[:1]], empty, turned[order[1:]])).view(-1),
        torch.cat((made.expert_ids[order[:1]], made.expert_ids[:1], made.expert_ids[order[1:]])),
        (made.num_tokens_padded + block_m).squeeze(), made.top_k, block_m, made.routed_rows, made.experts,
    )  # fmt: skip
    assert torch.equal(bits(replace(work, routing=routing).fenced_call(checked=True)), bits(work.fenced_call()))


def test_the_last_block_may_reach_past_the_capacity(work, gpu):
    """A capacity that cuts the last block short, in memory whose next words look like valid ids."""
    block_m, owned = work.routing.block_m, torch.arange(24, dtype=torch.int32, device=gpu)
    slots = torch.cat((owned[:16], torch.full((block_m - 16,), 24, dtype=torch.int32, device=gpu), owned[16:]))
    experts, padded = (torch.tensor(values, dtype=torch.int32, device=gpu) for values in ([3, 5], [2 * block_m]))
    routing = IndexedRouting(slots[: block_m + 4], experts, padded, 2, block_m, 24, 8)
    cut = replace(work, routing=routing, x=fenced(torch.randn(12, 192, device=gpu).bfloat16()))
    assert_right(cut.fenced_call(checked=True), cut)


@pytest.mark.parametrize("call", named(BESIDE_NAN))
def test_v50_neighbour_experts_are_never_touched(call, gpu, seed):
    """The weight lies between two experts whose scales are NaN."""
    case, schedule = call
    work = build(case, gpu, seed)
    data = work.weight.data
    wide = torch.full((case.experts + 2, *data.shape[1:]), 255, dtype=torch.uint8, device=gpu)
    wide[1:-1] = data
    inside = PackedW4A16(wide[1:-1], case.n, case.k, case.experts, False)
    with forced(schedule):
        assert torch.equal(bits(replace(work, weight=inside).fenced_call()), bits(work.fenced_call()))


def test_down_takes_the_blocks_of_gate_up(gpu, seed):
    """One routing, two projections: SwiGLU, then down with the router's weights, against FP64 on the same middle values."""
    gate_up = build(GATE_UP, gpu, seed)
    middle = gate_up.fenced_call()
    generator = generator_of(gpu, seed)
    scores = torch.rand(20, 2, generator=generator, device=gpu)
    down = Work(fenced(middle), weight_of(8, 256, 384, False, gpu), gate_up.routing.for_down(), topk_weights=scores)
    assert_right(gate_up.fenced_call(), gate_up)
    assert_right(down.fenced_call(), down)


BROKEN = {
    "must appear once": lambda routing: routing.sorted_ids[:1].fill_(routing.sorted_ids[routing.block_m]),
    "valid ids first, then sentinels": lambda routing: routing.sorted_ids[routing.block_m - 1 : routing.block_m].zero_(),
    "expert_ids must lie": lambda routing: routing.expert_ids[:1].fill_(8),
    "multiple of block_m": lambda routing: routing.num_tokens_padded.add_(1),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_checked_mode_refuses_before_a_launch(rule, work, gpu, no_launch):
    buffer, out = fenced_out(24, 384, gpu)
    BROKEN[rule](work.routing)
    with pytest.raises(InputError, match=rule):
        work.call(out=out, checked=True)
    assert bool((buffer.view(torch.int16) == POISON).all())


def test_another_device_than_the_current_one(gpu, seed):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", 1 - gpu.index)
    work = build(CASE, other, seed)
    assert_right(work.fenced_call(), work)
    assert torch.cuda.current_device() == gpu.index
