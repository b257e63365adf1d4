"""CUDA graphs of grouped calls: new counts in the same buffers, layouts made inside, several sites, cold calls that refuse cleanly."""

import pytest
import torch

import chord_jit
from chord_jit import counters
from chord_jit.errors import CaptureError
from chord_jit.routing.grouped import blocks_of, offsets_of
from tests.gpu.compare import assert_right
from tests.gpu.counts import draw
from tests.gpu.grouped_cases import CUT, MMA, PAIRS, TALL, GroupedCase, shaped
from tests.gpu.grouped_workload import LAYOUTS, build, forced
from tests.gpu.launches import assert_same_at_every_site_of_one_graph, capture
from tests.gpu.tensors import POISON, bits, generator_of

#: Room for all rows on one expert.
CASES = {layout: shaped(layout, draw="one", room=16 if layout == "blocks" else 5) for layout in LAYOUTS}
EP8 = GroupedCase(48, 4096, 7168, "masked", 32, "equal", **PAIRS)
REPLAYED = [(CASES[layout], how) for layout in LAYOUTS for how in (CUT, MMA)] + [(CASES["blocks"], TALL), (EP8, None)]
KERNELS = [(case, how) for case in CASES.values() for how in (None, CUT)]


def named(calls):
    return [pytest.param(call, id=f"{call[0]}-{call[1] or 'chosen'}".replace(" ", "-")) for call in calls]


def fitting(case, work, router, generator):
    """A draw that fits into the buffers of ``work``."""
    counts = draw(router, case.experts, case.rows, generator)
    if case.layout == "masked":
        return counts.clamp(max=len(work.x) // case.experts)
    room = len(work.x) if case.layout == "offsets" else len(work.x) - case.experts * 128
    while int(counts.sum()) > room:
        counts //= 2
    return counts


@pytest.mark.quick
@pytest.mark.parametrize("call", named(REPLAYED))
def test_v40_replay_follows_counts_written_into_the_same_buffers(call, gpu, seed):
    case, schedule = call
    work, generator = build(case, gpu, seed), generator_of(gpu, seed)
    work.x.copy_(torch.randn(work.x.shape, generator=generator, device=gpu))
    with forced(schedule):
        out = work.fenced_call()
        graph = capture(lambda: work.call(out=out))
        for turn, router in enumerate(("ragged", "one", "alternate", "none", "equal", "first", "last", "hot", "random")):
            fresh = work.recounted(fitting(case, work, router, generator), generator)
            eager = fresh.fenced_call(checked=True)
            work.values.copy_(fresh.values)
            bits(out).fill_(POISON)
            graph.replay()
            assert torch.equal(bits(out), bits(eager)), f"replay {turn} with {router} counts differs from an eager call"


@pytest.mark.parametrize("layout", ["offsets", "blocks"])
def test_the_layout_is_computed_in_the_graph(layout, gpu, seed):
    """From counts on the device to the result in one graph; nothing in it may wait for the device."""
    case = CASES[layout]
    work, generator = build(case, gpu, seed), generator_of(gpu, seed)
    rows = 2 * 16 * 128  # 16 experts of at most 140 rows, or one of 1120
    x = torch.randn(rows, case.k, generator=generator, device=gpu).bfloat16()
    counts, out = torch.zeros(16, dtype=torch.int64, device=gpu), torch.empty(rows, case.n, dtype=torch.bfloat16, device=gpu)

    def step(**options):
        made = dict(offsets=offsets_of(counts)) if layout == "offsets" else dict(m_indices=blocks_of(counts, rows))
        chord_jit.contiguous(x, work.weight, **made, expected_rows=70, out=out, **options)

    with forced(CUT):
        graph = capture(step)
        for router in ("ragged", "none", "one", "alternate"):
            counts.copy_(draw(router, 16, 70, generator))
            bits(out).fill_(POISON)
            step(checked=True)
            eager = out.clone()
            bits(out).fill_(POISON)
            graph.replay()
            assert torch.equal(bits(out), bits(eager)), f"{router} counts"


def test_v45_branches_and_repeated_sites_of_one_graph(gpu, seed):
    """Two branches that may overlap and two launches in a row: each site counts its own tiles and joins its own cuts."""
    works = [build(CASES[layout], gpu, seed + turn) for turn, layout in enumerate(("offsets", "masked", "offsets"))]
    with forced(CUT):
        assert_same_at_every_site_of_one_graph(works)


@pytest.mark.quick
@pytest.mark.parametrize("layout", LAYOUTS)
def test_v40_a_cold_call_under_capture_is_refused_and_the_stream_stays_usable(layout, gpu, seed):
    """No other test uses this shape."""
    cold, warm = build(GroupedCase(2, 264, 416, layout, 3), gpu, seed), build(CASES[layout], gpu, seed)
    right, out = warm.fenced_call(), warm.fenced_call()
    before, graph = counters(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="warm_up"):
            cold.call(out=torch.empty(len(cold.x), 264, dtype=torch.bfloat16, device=gpu))
        warm.call(out=out)
    assert counters() == before, "something was built or loaded under capture"
    bits(out).fill_(POISON)
    graph.replay()
    assert torch.equal(bits(out), bits(right))
    assert_right(cold.fenced_call(), cold)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checked_calls_under_capture_are_refused(layout, gpu, seed):
    work = build(CASES[layout], gpu, seed)
    right, out, graph = work.fenced_call(), work.fenced_call(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="checked"):
            work.call(out=out, checked=True)
        work.call(out=out)
    bits(out).fill_(POISON)
    graph.replay()
    assert torch.equal(bits(out), bits(right))


def test_result_and_sums_allocated_under_capture(gpu, seed):
    """Neither result nor the memory of cut tiles is shared with what is allocated later in the same capture."""
    work = build(CASES["offsets"], gpu, seed)
    with forced(CUT):
        right, graph = work.fenced_call(), torch.cuda.CUDAGraph()
        work.call()
        with torch.cuda.graph(graph):
            outs = [work.call() for _ in range(3)]
            later = torch.zeros(1 << 20, device=gpu)
    for _ in range(3):
        graph.replay()
        owned = work.owned
        assert all(torch.equal(bits(out)[owned], bits(right)[owned]) for out in outs) and not later.any()
