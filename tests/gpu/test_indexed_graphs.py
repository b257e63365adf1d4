"""CUDA graphs: new routing in the same buffers, the builder inside, several sites, and cold calls that refuse cleanly."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import align_blocks, counters
from chord_jit.errors import CaptureError
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.launches import assert_same_at_every_site_of_one_graph, capture
from tests.gpu.prefill_cases import CUT, WIDE, named, shaped
from tests.gpu.routers import routing_of
from tests.gpu.tensors import POISON, bits, generator_of
from tests.gpu.workload import build, forced

CASE = Case(8, 768, 1344, 16, 3, 16)
EP8, PREFILL = Case(48, 4096, 7168, 20, 8, 8, **PAIRS), Case(48, 4096, 7168, 512, 8, 64, **PAIRS)
TALL = shaped(64)
REPLAYED = [(CASE, None), (EP8, None), (TALL, CUT), (shaped(48), WIDE), (PREFILL, None)]
KERNELS = [(CASE, None), (EP8, None), (TALL, CUT)]


@pytest.mark.quick
@pytest.mark.parametrize("call", named(REPLAYED))
def test_v40_replay_follows_routing_written_into_the_same_buffers(call, gpu, seed):
    case, schedule = call
    work = build(case, gpu, seed)
    work.x.copy_(torch.randn(work.x.shape, device=gpu))
    with forced(schedule):
        out = work.fenced_call()
        graph = capture(lambda: work.call(out=out))
        for turn, router in enumerate(("random", "hot", "sparse", "dropped", "none", "random")):
            fresh = routing_of(replace(case, draw=router), generator_of(gpu, seed + turn))
            if router == "none":
                fresh.num_tokens_padded.zero_()
            eager = replace(work, routing=fresh).fenced_call()
            for name in ("sorted_ids", "expert_ids", "num_tokens_padded"):
                getattr(work.routing, name).copy_(getattr(fresh, name))
            bits(out).fill_(POISON)
            graph.replay()
            assert torch.equal(bits(out), bits(eager)), f"replay {turn} with {router} routing differs from an eager call"


def test_the_builder_is_captured_with_its_call(gpu, seed):
    """From router output to result in one graph; nothing in it may wait for the device."""
    work = build(CASE, gpu, seed)
    topk_ids = torch.zeros(16, 3, dtype=torch.int64, device=gpu)
    expert_map = torch.randperm(8, device=gpu).to(torch.int32)
    out = work.fenced_call()

    def step():
        chord_jit.indexed(work.x, work.weight, align_blocks(topk_ids, 16, 8, expert_map=expert_map), out=out)

    graph = capture(step)
    for turn in range(4):
        topk_ids.copy_(torch.rand(16, 8, device=gpu).topk(3).indices if turn else torch.full((16, 3), -1))
        routing = align_blocks(topk_ids, 16, 8, expert_map=expert_map, checked=True)
        eager = replace(work, routing=routing).fenced_call(checked=True)
        bits(out).fill_(POISON)
        graph.replay()
        assert torch.equal(bits(out), bits(eager))


@pytest.mark.parametrize("cases, schedule", [((CASE, EP8, CASE), None), ((TALL, TALL, shaped(128)), CUT)], ids=["few rows", "cut tiles"])
def test_v45_branches_and_repeated_sites_of_one_graph(cases, schedule, gpu, seed):
    """Two branches that may overlap and two launches in a row: each site counts its own tiles and joins its own cuts."""
    works = [build(case, gpu, seed + turn) for turn, case in enumerate(cases)]
    with forced(schedule):
        assert_same_at_every_site_of_one_graph(works)


@pytest.mark.quick
def test_v40_a_cold_call_under_capture_is_refused_and_the_stream_stays_usable(gpu, seed):
    """No other test uses this shape."""
    work = build(Case(2, 264, 416, 3, 1, 8), gpu, seed)
    warm = build(CASE, gpu, seed)
    right, out = warm.fenced_call(), warm.fenced_call()
    before, graph = counters(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="warm_up"):
            work.call(out=torch.empty(3, 264, dtype=torch.bfloat16, device=gpu))
        warm.call(out=out)
    assert counters() == before, "something was built or loaded under capture"
    bits(out).fill_(POISON)
    graph.replay()
    assert torch.equal(bits(out), bits(right))
    assert_right(work.fenced_call(), work)


def test_checked_calls_under_capture_are_refused(gpu, seed):
    work = build(CASE, gpu, seed)
    right, out = work.fenced_call(), work.fenced_call()
    topk_ids, graph = torch.zeros(16, 3, dtype=torch.int32, device=gpu), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="checked"):
            work.call(out=out, checked=True)
        with pytest.raises(CaptureError, match="checked"):
            align_blocks(topk_ids, 16, 8, checked=True)
        work.call(out=out)
    bits(out).fill_(POISON)
    graph.replay()
    assert torch.equal(bits(out), bits(right))


@pytest.mark.parametrize("call", named([(CASE, None), (TALL, CUT)]))
def test_result_and_sums_allocated_under_capture(call, gpu, seed):
    """Neither result nor the memory of cut tiles is shared with what is allocated later in the same capture."""
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        right, graph = work.fenced_call(), torch.cuda.CUDAGraph()
        work.call()
        with torch.cuda.graph(graph):
            outs = [work.call() for _ in range(2)]
            later = torch.zeros(1 << 20, device=gpu)
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(bits(out), bits(right)) for out in outs) and not later.any()
