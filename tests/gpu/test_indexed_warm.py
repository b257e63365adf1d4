"""A warm call: no device memory, no compile, no load, no file, no synchronisation."""

import pytest
import torch

import chord_jit
from chord_jit import align_blocks, counters
from tests.gpu.cases import Case
from tests.gpu.workload import build, problem_of

CASES = [Case(48, 4096, 7168, 20, 8, 8, interleaved=True, swiglu=True), Case(8, 384, 192, 12, 2, 16, weighted=True)]


def test_the_listener_hears_a_file(events):
    assert events(lambda: open(__file__).close())


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES, ids=str)
def test_v20_a_warm_call_touches_nothing_but_its_tensors(case, gpu, seed, events):
    work = build(case, gpu, seed)
    out = work.fenced_call()
    work.call(out=out)
    torch.cuda.synchronize()
    before, memory = counters(), torch.cuda.memory_stats(gpu)["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        heard = events(lambda: [work.call(out=out) for _ in range(20)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert heard == []
    assert counters() == before
    assert torch.cuda.memory_stats(gpu)["allocation.all.allocated"] == memory


def test_a_call_without_out_allocates_the_result_and_nothing_else(gpu, seed):
    work = build(CASES[0], gpu, seed)
    work.call()
    before = torch.cuda.memory_stats(gpu)["allocation.all.allocated"]
    out = work.call()
    assert torch.cuda.memory_stats(gpu)["allocation.all.allocated"] == before + 1
    assert out.shape == (160, 2048)


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


def test_v38_other_token_counts_need_no_new_kernel(gpu, seed):
    """A token count is no compile-time value: what one count built serves the next of the same class."""
    build(Case(8, 384, 192, 12, 2, 16), gpu, seed).call(expected_rows=3.0)
    before = counters()
    for tokens in (1, 5, 13, 40, 300):
        build(Case(8, 384, 192, tokens, 2, 16), gpu, seed).call(expected_rows=3.0)
    assert (counters().compiles, counters().loads) == (before.compiles, before.loads)


def test_v38_warm_up_leaves_nothing_to_build_or_load(gpu, seed):
    """No other test uses this shape."""
    case = Case(3, 392, 544, 5, 2, 8, weighted=True)
    report = chord_jit.warm_up([problem_of(case, gpu)])
    assert (report.compiled, report.failed) == (1, 0)
    before, work = counters(), build(case, gpu, seed)
    graph, out = torch.cuda.CUDAGraph(), torch.empty(10, 392, dtype=torch.bfloat16, device=gpu)
    with torch.cuda.graph(graph):
        work.call(out=out)
    graph.replay()
    assert (counters().compiles, counters().loads) == (before.compiles, before.loads)
    assert torch.equal(out.view(torch.int16), work.fenced_call().view(torch.int16))
