"""A warm call: no device memory, no compile, no load, no file, no synchronisation."""

import pytest
import torch

import chord_jit
from chord_jit import align_blocks, counters
from tests.gpu.cases import PAIRS, Case
from tests.gpu.launches import assert_warm_calls_touch_nothing
from tests.gpu.prefill_cases import CUT, WHOLE, named, shaped
from tests.gpu.workload import build, forced, problem_of

EP8 = Case(48, 4096, 7168, 20, 8, 8, **PAIRS)
CALLS = [
    (EP8, None), (Case(8, 384, 192, 12, 2, 16, weighted=True), None), (Case(48, 4096, 7168, 512, 8, 64, **PAIRS), None),
    (shaped(64), CUT), (shaped(64, weighted=True), WHOLE),
]  # fmt: skip


def test_the_listener_hears_a_file(events):
    assert events(lambda: open(__file__).close())


@pytest.mark.quick
@pytest.mark.parametrize("call", named(CALLS))
def test_v20_a_warm_call_touches_nothing_but_its_tensors(call, gpu, seed, events):
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        assert_warm_calls_touch_nothing(work, events)


@pytest.mark.parametrize("call", named([(EP8, None), (shaped(64), WHOLE)]))
def test_a_call_without_out_allocates_the_result_and_nothing_else(call, gpu, seed):
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        work.call()
        before = torch.cuda.memory_stats(gpu)["allocation.all.allocated"]
        out = work.call()
    assert torch.cuda.memory_stats(gpu)["allocation.all.allocated"] == before + 1
    assert out.shape == (case.tokens * case.top_k, work.columns)


@pytest.mark.parametrize("tokens, dtype", [(20, torch.int32), (4096, torch.int64)], ids=str)
def test_the_builder_does_not_wait_for_the_device(tokens, dtype, gpu):
    topk_ids = torch.rand(tokens, 384, device=gpu).topk(8).indices.to(dtype)
    expert_map = torch.full((384,), -1, dtype=torch.int32, device=gpu)
    expert_map[:48] = torch.arange(48, dtype=torch.int32, device=gpu)
    expected = align_blocks(topk_ids.cpu(), 16, 48, expert_map=expert_map.cpu())
    torch.cuda.set_sync_debug_mode("error")
    try:
        routing = align_blocks(topk_ids, 16, 48, expert_map=expert_map)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    padded = int(expected.num_tokens_padded)
    assert int(routing.num_tokens_padded) == padded > 0
    assert torch.equal(routing.sorted_ids[:padded].cpu(), expected.sorted_ids[:padded])
    assert torch.equal(routing.expert_ids[: padded // 16].cpu(), expected.expert_ids[: padded // 16])


@pytest.mark.parametrize("block_m, rows", [(16, 3.0), (64, 100.0)])
def test_v38_other_token_counts_need_no_new_kernel(block_m, rows, gpu, seed):
    """A token count is no compile-time value: what one count built serves the next of the same class."""
    build(Case(8, 384, 192, 12, 2, block_m), gpu, seed).call(expected_rows=rows)
    before = counters()
    for tokens in (1, 5, 13, 40, 300, 900):
        build(Case(8, 384, 192, tokens, 2, block_m), gpu, seed).call(expected_rows=rows)
    assert (counters().compiles, counters().loads) == (before.compiles, before.loads)


@pytest.mark.parametrize("tokens, block_m, weighted", [(5, 8, True), (300, 64, False)])
def test_v38_warm_up_leaves_nothing_to_build_or_load(tokens, block_m, weighted, gpu, own_cache, seed):
    """No other test uses this shape, and as no parameter is a ``Case``, its kernel is not compiled beforehand."""
    case = Case(3, 392, 544, tokens, 2, block_m, weighted=weighted)
    report = chord_jit.warm_up([problem_of(case, gpu)])
    assert (report.compiled, report.failed) == (1, 0)
    before, work = counters(), build(case, gpu, seed)
    graph, out = torch.cuda.CUDAGraph(), torch.empty(2 * case.tokens, 392, dtype=torch.bfloat16, device=gpu)
    with torch.cuda.graph(graph):
        work.call(out=out)
    graph.replay()
    assert (counters().compiles, counters().loads) == (before.compiles, before.loads)
    assert torch.equal(out.view(torch.int16), work.fenced_call().view(torch.int16))
