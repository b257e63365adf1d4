"""What the grouped contract promises: who never influences a result, who is never written, and calls that have nothing to do."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import PackedW4A16, counters
from chord_jit.errors import InputError
from chord_jit.routing.grouped import blocks_of, offsets_of
from tests.gpu.compare import assert_right
from tests.gpu.counts import draw
from tests.gpu.grouped_cases import CUT, MIXED, MMA, PAIRS, TALL, GroupedCase, shaped
from tests.gpu.grouped_workload import LAYOUTS, NAMES, GroupedWork, build, forced
from tests.gpu.tensors import POISON, bits, fenced, fenced_out, generator_of, weight_of

CASES = {layout: shaped(layout, room=7) for layout in LAYOUTS}
#: Every layout by both kernels.
WAYS = [(CASES[layout], how) for layout in LAYOUTS for how in (CUT, MMA)] + [(CASES["blocks"], TALL)]
NARROW = GroupedCase(3, 72, 96, "masked", 40, "ragged")
BESIDE_NAN = [(replace(NARROW, **MIXED), CUT), (replace(NARROW, **PAIRS), MMA), (shaped("masked", 3), CUT), (shaped("masked", 3), MMA)]
GATE_UP, DOWN = GroupedCase(8, 768, 256, "masked", 60, "ragged", **PAIRS), GroupedCase(8, 256, 384, "masked", 60, "ragged")
KERNELS = [(case, None) for case in (*CASES.values(), GATE_UP, DOWN)]


def named(calls):
    return [pytest.param(call, id=f"{call[0]}-{call[1]}".replace(" ", "-")) for call in calls]


@pytest.mark.quick
@pytest.mark.parametrize("layout", LAYOUTS)
def test_result_is_allocated_where_none_is_given(layout, gpu, seed):
    work = build(CASES[layout], gpu, seed)
    out, given = work.call(), work.fenced_call()
    assert (out.dtype, out.shape, out.device) == (torch.bfloat16, (len(work.x), 1024), gpu)
    assert torch.equal(bits(out)[work.owned], bits(given)[work.owned])


@pytest.mark.quick
def test_v48_zero_rows_give_an_empty_result_and_launch_nothing(gpu, no_launch):
    """No other test uses this shape: not even a kernel is built or loaded."""
    weight, before = weight_of(2, 136, 352, True, gpu), counters()
    x, counts = torch.empty(0, 352, dtype=torch.bfloat16, device=gpu), torch.zeros(2, dtype=torch.int32, device=gpu)
    for swiglu, columns in ((False, 136), (True, 68)):
        out, options = torch.empty(0, columns, dtype=torch.bfloat16, device=gpu), dict(swiglu=swiglu, checked=True)
        for given in (x, x.view(2, 0, 352)):
            assert chord_jit.masked(given, weight, counts, 8, **options).shape == (0, columns)
            assert chord_jit.masked(given, weight, counts, 8, out=out, **options) is out
        for layout in (dict(m_indices=counts[:0]), dict(offsets=offsets_of(counts))):
            assert chord_jit.contiguous(x, weight, **layout, **options).shape == (0, columns)
            assert chord_jit.contiguous(x, weight, **layout, out=out, **options) is out
    assert counters() == before


@pytest.mark.quick
@pytest.mark.parametrize("call", named(WAYS))
def test_v49_counts_of_zero_write_nothing(call, gpu, seed):
    case, schedule = call
    work, generator = build(case, gpu, seed), generator_of(gpu, seed)
    nothing = work.recounted(draw("none", case.experts, case.rows, generator), generator)
    with forced(schedule):
        out = nothing.fenced_call(checked=True)
    assert bool((bits(out) == POISON).all())


@pytest.mark.quick
@pytest.mark.parametrize("call", named(WAYS))
def test_v50_what_nobody_owns_influences_no_result(call, gpu, seed):
    """Rows of padding, beyond a count and behind the last offset hold NaN, then infinities, then zeros: the same bits."""
    case, schedule = call
    work = build(case, gpu, seed)
    nobody = ~work.owned
    assert bool(nobody.any()) and bool(work.x[nobody].isnan().all())
    with forced(schedule):
        first = work.fenced_call()
        assert_right(first, work)
        for filler in (float("inf"), 0.0):
            work.x[nobody] = filler
            assert torch.equal(bits(work.fenced_call()), bits(first)), f"{filler} in rows of nobody changes a result"


@pytest.mark.parametrize("call", named(BESIDE_NAN))
def test_v49_v50_neighbour_experts_are_never_touched(call, gpu, seed):
    """The weight lies between two experts whose scales are NaN."""
    case, schedule = call
    work = build(case, gpu, seed)
    data = work.weight.data
    wide = torch.full((case.experts + 2, *data.shape[1:]), 255, dtype=torch.uint8, device=gpu)
    wide[1:-1] = data
    inside = PackedW4A16(wide[1:-1], case.n, case.k, case.experts, case.interleaved)
    with forced(schedule):
        assert torch.equal(bits(replace(work, weight=inside).fenced_call()), bits(work.fenced_call()))


def test_down_takes_the_layout_of_gate_up(gpu, seed):
    """Two projections over one layout; the middle values of nobody's rows are the poison that gate/up did not write."""
    gate_up = build(GATE_UP, gpu, seed)
    middle = gate_up.fenced_call()
    down = GroupedWork(fenced(middle), weight_of(8, 256, 384, False, gpu), "masked", gate_up.values, 60)
    assert_right(middle, gate_up)
    assert_right(down.fenced_call(), down)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_weight_of_one_call_is_refused_by_the_other(layout, gpu, seed, no_launch):
    work = build(CASES[layout], gpu, seed)
    own, other = ("masked", "contiguous") if layout == "masked" else ("contiguous", "masked")
    with pytest.raises(InputError, match=f"packed for {other}"):
        replace(work, weight=replace(work.weight, mode=other)).call()
    with pytest.raises(pytest.fail.Exception, match="launched"):
        replace(work, weight=replace(work.weight, mode=own)).call()


# -- checked mode -------------------------------------------------------------------------------------------------------
ROWS, EXPERTS = 7 * 128, 4


def good(layout, where):
    """256, 130, 0 and 40 rows. Blocks: two of expert 0, two of expert 1, one of expert 3, two of padding; max_m is 224."""
    counts = torch.tensor([256, 130, 0, 40], device=where)
    return {"masked": counts.clamp(max=224).int(), "offsets": offsets_of(counts), "blocks": blocks_of(counts, ROWS)}[layout]


def put(place, value):
    return lambda values: values[place].fill_(value)


# layout, words of the rule, what breaks it.
BROKEN = [
    ("masked", "must lie in 0 .. max_m", put(slice(2, 3), -1)),
    ("masked", "must lie in 0 .. max_m", put(slice(3, 4), 225)),
    ("masked", "must lie in 0 .. max_m", put(slice(0, 1), 2**31 - 1)),
    ("offsets", "must begin at 0", put(slice(0, 1), 1)),
    ("offsets", "must not decrease", put(slice(2, 3), 255)),
    ("offsets", "must not pass the rows of x", put(slice(4, 5), ROWS + 1)),
    ("offsets", "must not pass the rows of x", put(slice(4, 5), 2**40)),
    ("blocks", "must hold an expert of the weight, or -1", put(slice(5, 6), EXPERTS)),
    ("blocks", "must hold an expert of the weight, or -1", put(slice(-1, None), -2)),
    ("blocks", "valid rows first, then padding", put(slice(3 * 128 + 5, 3 * 128 + 6), 1)),
    ("blocks", "must hold rows of one expert", put(slice(7, 8), 3)),
    ("blocks", "must stand at the end of an expert's rows", put(slice(100, 128), -1)),
    ("blocks", "blocks of one expert must be adjacent", put(slice(6 * 128, 7 * 128), 0)),
]


@pytest.mark.parametrize("layout, rule, spoil", BROKEN, ids=[f"{layout}-{rule}-{at}" for at, (layout, rule, _) in enumerate(BROKEN)])
def test_checked_mode_refuses_before_a_launch(layout, rule, spoil, gpu, no_launch):
    weight, values = weight_of(EXPERTS, 1024, 768, False, gpu), good(layout, gpu)
    buffer, out = fenced_out(ROWS, 1024, gpu)
    work = GroupedWork(torch.zeros(ROWS, 768, dtype=torch.bfloat16, device=gpu), weight, layout, values, 64)
    spoil(values)
    with pytest.raises(InputError, match=rule) as caught:
        work.call(out=out, checked=True)
    assert NAMES[layout] in caught.value.asked and caught.value.values and caught.value.remedy
    assert bool((bits(buffer) == POISON).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checked_mode_accepts_what_it_is_spoilt_from(layout, gpu):
    weight, x = weight_of(EXPERTS, 1024, 768, False, gpu), torch.randn(ROWS, 768, device=gpu).bfloat16()
    work = GroupedWork(fenced(x), weight, layout, good(layout, gpu), 64)
    assert_right(work.fenced_call(checked=True), work)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_device_than_the_current_one(layout, gpu, seed):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", 1 - gpu.index)
    work = build(CASES[layout], other, seed)
    assert_right(work.fenced_call(), work)
    assert torch.cuda.current_device() == gpu.index
