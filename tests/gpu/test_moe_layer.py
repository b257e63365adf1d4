"""The whole layer with its kernels: values by both ways, capture, determinism, streams, slices, compiled graphs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import chord_jit
from chord_jit import counters
from chord_jit.errors import CaptureError
from chord_jit.reference.moe import moe
from chord_jit.rows import pipeline
from tests.gpu.launches import assert_same_in_two_threads, assert_same_on_two_streams, capture
from tests.gpu.tensors import POISON, bits, poisoned
from tests.unit.layers.random_layer import random_layer

ROOT = Path(__file__).resolve().parents[2]
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


def test_slices_are_right(gpu, seed):
    """Slices of 16, 16 and one token: each by the schedules of its own rows per expert, so bits may differ."""
    weights, _, x, ids, factors = draw(SMALL, gpu)
    layer = chord_jit.MoELayer(weights, top_k=SMALL[1])
    whole = layer(x, ids, factors)
    layer.workspace_bytes = 2 * SMALL[1] * (SMALL[3] + SMALL[4]) * 16
    assert pipeline.tokens_at_once(weights, SMALL[1], layer.workspace_bytes) == 16
    assert_close(layer(x, ids, factors), whole.double())


@dataclass(frozen=True)
class Work:
    """A layer's call, as the checks of ``launches`` repeat it."""

    layer: chord_jit.MoELayer
    given: tuple[torch.Tensor, ...]

    def call(self, *, out: torch.Tensor) -> torch.Tensor:
        return self.layer(*self.given, out=out)


def two_works(tokens: int, where: torch.device) -> tuple[list[Work], list[torch.Tensor]]:
    """Two layers, of ``tokens`` and one more, and what each answers by itself."""
    drawn = [draw((tokens + turn, 8, 12, 512, 256, 0), where) for turn in range(2)]
    works = [Work(chord_jit.MoELayer(weights, top_k=8), tuple(given)) for weights, _, *given in drawn]
    return works, [work.layer(*work.given) for work in works]


@pytest.mark.parametrize("tokens", [45, 300], ids=["ids of one CTA", "ids in chunks"])
def test_two_streams_at_once(gpu, tokens, seed):
    assert_same_on_two_streams(*two_works(tokens, gpu))


@pytest.mark.parametrize("tokens", [45, 300], ids=["ids of one CTA", "ids in chunks"])
def test_two_threads_on_streams_of_their_own(gpu, tokens, seed):
    assert_same_in_two_threads(*two_works(tokens, gpu))


@pytest.mark.parametrize("tokens", [45, 300], ids=["ids of one CTA", "ids in chunks"])
def test_two_threads_on_one_stream(gpu, tokens, seed):
    """Their launches take turns in any order: a launch gives up the GIL."""
    works, expected = two_works(tokens, gpu)
    assert_same_in_two_threads(works, expected, streams=[torch.cuda.Stream()] * 2)


def test_a_first_call_that_torch_captures_itself(gpu):
    program = [sys.executable, "-m", "tests.gpu.first_compiled_case"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "fine" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


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


def test_v38_a_warmed_up_layer_builds_nothing_at_any_token_count(gpu, own_cache, seed):
    """No other test uses this shape."""
    hidden, neurons, experts, top_k = 544, 160, 5, 2
    weights, _, x, ids, factors = draw((4000, top_k, experts, hidden, neurons, 0), gpu)
    report = chord_jit.warm_up(chord_jit.Deployment(hidden, neurons, experts, top_k))
    assert report.compiled and not report.failed
    layer, before = chord_jit.MoELayer(weights, top_k=top_k), counters()
    for tokens in (1, 2, 3, 7, 20, 64, 150, 500, 1300, 4000):
        layer(x[:tokens], ids[:tokens], factors[:tokens])
    torch.cuda.synchronize()
    assert (counters().compiles, counters().loads) == (before.compiles, before.loads)


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
