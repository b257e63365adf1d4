"""The whole layer with its kernels: values by both ways, capture, determinism, streams, slices, compiled graphs."""

from __future__ import annotations

import pytest
import torch

import chord_jit
from chord_jit import counters
from chord_jit.errors import CaptureError
from chord_jit.reference.moe import moe
from chord_jit.rows import pipeline
from tests.gpu.launches import capture
from tests.gpu.tensors import POISON, bits, poisoned
from tests.unit.layers.random_layer import random_layer

#: Tokens, top_k, local experts, hidden, neurons, experts of the map (0: none).
SMALL = (33, 4, 8, 512, 256, 0)
SHAPES = [
    SMALL, (1, 8, 48, 1024, 512, 0), (200, 8, 12, 1024, 512, 96), (700, 8, 48, 768, 352, 0), (5, 2, 1, 256, 64, 3),
    (64, 8, 384, 512, 256, 0),
]  # fmt: skip
WAYS = ["indexed", "contiguous"]


def draw(shape: tuple, where: torch.device) -> tuple:
    tokens, top_k, experts, hidden, neurons, mapped = shape
    weights = random_layer(experts, hidden, neurons, device=str(where))
    expert_map = None
    if mapped:
        expert_map = torch.full((mapped,), -1, dtype=torch.int32, device=where)
        expert_map[torch.randperm(mapped, device=where)[:experts]] = torch.randperm(experts, device=where).int()
    return weights, expert_map, *inputs(shape, where)


def inputs(shape: tuple, where: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, top_k, experts, hidden, _, mapped = shape
    ids = torch.randint(-1, mapped or experts, (tokens, top_k), device=where)
    return torch.randn(tokens, hidden, device=where).bfloat16(), ids, torch.rand(tokens, top_k, device=where)


def assert_close(found: torch.Tensor, exact: torch.Tensor) -> None:
    """BF16 rounding of weights, activated rows, the rows that are added, and the sum."""
    error = (found.double() - exact).norm() / exact.norm()
    assert error < 8e-3, f"relative error {error:.2e}"


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways_are_right(gpu, shape, way, seed):
    weights, expert_map, x, ids, factors = draw(shape, gpu)
    exact = moe(x, weights, ids, factors, expert_map=expert_map)
    for dtype in (torch.int64, torch.int32):
        out = poisoned(*x.shape, where=gpu)
        pipeline.run(x, weights, ids.to(dtype), factors, shape[1], expert_map=expert_map, way=way, out=out)
        assert_close(out, exact)


@pytest.mark.parametrize("way", WAYS)
def test_replays_follow_ids_weights_and_activations(gpu, way, seed):
    weights, _, x, ids, factors = draw(SMALL, gpu)
    out = torch.empty_like(x)
    graph = capture(lambda: pipeline.run(x, weights, ids, factors, SMALL[1], way=way, out=out))
    for turn in range(4):
        for held, fresh in zip((x, ids, factors), inputs(SMALL, gpu), strict=True):
            held.copy_(fresh)
        if turn == 2:
            ids.fill_(-1)
        eager = pipeline.run(x, weights, ids, factors, SMALL[1], way=way)
        bits(out).fill_(POISON)
        graph.replay()
        assert torch.equal(bits(out), bits(eager))


@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_repeats_beside_other_work_are_the_same_bits(gpu, way, seed):
    weights, _, x, ids, factors = draw((300, 8, 48, 512, 256, 0), gpu)
    first, side = pipeline.run(x, weights, ids, factors, 8, way=way), torch.cuda.Stream()
    busy, out = torch.randn(2048, 2048, device=gpu), poisoned(*x.shape, where=gpu)
    wrong = torch.zeros(1, dtype=torch.int64, device=gpu)
    side.wait_stream(torch.cuda.current_stream())
    for turn in range(1000):
        if turn % 5 == 0:
            with torch.cuda.stream(side):
                busy = (busy @ busy).clamp_(-1, 1)
        pipeline.run(x, weights, ids, factors, 8, way=way, out=out)
        wrong += (bits(out) != bits(first)).any()
    assert int(wrong) == 0


def test_slices_change_no_bit(gpu, seed):
    """Of a few rows per expert, where slices and the whole take the same schedules."""
    weights, _, x, ids, factors = draw(SMALL, gpu)
    layer = chord_jit.MoELayer(weights, top_k=SMALL[1])
    whole = layer(x, ids, factors)
    layer.workspace_bytes = 2 * SMALL[1] * (SMALL[3] + SMALL[4]) * 16
    assert pipeline.tokens_at_once(weights, SMALL[1], layer.workspace_bytes) == 16
    assert_close(layer(x, ids, factors), whole.double())


def test_two_streams_at_once(gpu, seed):
    works = [draw((90 + turn, 4, 8, 512, 256, 0), gpu) for turn in range(2)]
    calls = [(chord_jit.MoELayer(weights, top_k=4), given) for weights, _, *given in works]
    expected = [layer(*given) for layer, given in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    outs = [[torch.empty_like(right) for _ in range(30)] for right in expected]
    torch.cuda.synchronize()
    for turn in range(30):
        for (layer, given), stream, out in zip(calls, streams, outs, strict=True):
            with torch.cuda.stream(stream):
                layer(*given, out=out[turn])
    torch.cuda.synchronize()
    for right, found in zip(expected, outs, strict=True):
        assert all(torch.equal(bits(one), bits(right)) for one in found)


def test_a_warm_call_compiles_loads_and_waits_for_nothing(gpu, events, seed):
    weights, _, x, ids, factors = draw(SMALL, gpu)
    layer, out = chord_jit.MoELayer(weights, top_k=SMALL[1]), torch.empty_like(x)
    for _ in range(2):
        layer(x, ids, factors, out=out)
    torch.cuda.synchronize()
    before, held = counters(), torch.cuda.memory_stats(gpu)["reserved_bytes.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        heard = events(lambda: [layer(x, ids, factors, out=out) for _ in range(20)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert heard == [] and counters() == before
    assert torch.cuda.memory_stats(gpu)["reserved_bytes.all.allocated"] == held, "the driver was asked for memory"


def test_a_cold_layer_under_capture_is_refused(gpu, seed):
    weights, _, x, ids, factors = draw((3, 2, 4, 288, 96, 0), gpu)
    layer, graph = chord_jit.MoELayer(weights, top_k=2), torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="warm_up"), torch.cuda.graph(graph):
        layer(x, ids, factors)
    torch.cuda.synchronize()
    assert_close(layer(x, ids, factors), moe(x, weights, ids, factors))


def test_a_layer_compiles_whole(gpu, seed):
    weights, _, x, ids, factors = draw(SMALL, gpu)
    layer = chord_jit.MoELayer(weights, top_k=SMALL[1])
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: layer(*given) * 2, fullgraph=True)
    for count in (33, 8, 20):
        given = x[:count], ids[:count], factors[:count]
        assert torch.equal(compiled(*given), layer(*given) * 2)


def test_no_tokens_and_many(gpu, seed):
    weights, _, x, ids, factors = draw((65536, 2, 4, 256, 64, 0), gpu)
    layer = chord_jit.MoELayer(weights, top_k=2, workspace_bytes=1 << 24)
    assert layer(x[:0], ids[:0], factors[:0]).shape == (0, 256)
    torch.cuda.reset_peak_memory_stats(gpu)
    before, out = torch.cuda.memory_allocated(gpu), torch.empty_like(x)
    layer(x, ids, factors, out=out)
    slack = torch.cuda.max_memory_allocated(gpu) - before - out.nbytes
    assert slack < (1 << 24) + (8 << 20)
    some = torch.randint(0, 65536, (64,), device=gpu)
    assert_close(out[some], moe(x[some], weights, ids[some], factors[some]))
