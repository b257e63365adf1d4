"""One packed weight serves indexed, contiguous and masked: the same bits from every kernel on integer data, and FP64's.

Activations are small integers and scales powers of two, so every sum is exact in FP32 in any order, cut tiles included.
"""

import pytest
import torch

import chord_jit
from chord_jit import align_blocks, pack_w4a16, pack_w4a16_grouped
from tests.gpu.counts import draw, rows_for, values_of
from tests.gpu.grouped_cases import CUT, MIXED, MMA, PAIRS, TALL, WIDE, GroupedCase
from tests.gpu.grouped_workload import GroupedWork, forced
from tests.gpu.tensors import bits, codes_of, fenced, generator_of, integer_weight, integers

EXPERTS, MEAN = 40, 70
#: Every call and both kernels of each; every schedule is legal for its shapes.
SHAPES = {
    "plain": (dict(n=1024, k=768), (("masked", MMA), ("masked", WIDE), ("offsets", CUT), ("blocks", TALL))),
    "swiglu": (dict(n=1024, k=768, **PAIRS), (("masked", MMA), ("masked", CUT), ("offsets", WIDE), ("blocks", TALL))),
    "interleaved with padding": (dict(n=328, k=1376, **MIXED), (("offsets", MMA), ("masked", CUT), ("blocks", CUT))),
}


def calls_of(shape):
    options, ways = SHAPES[shape]
    return [(GroupedCase(EXPERTS, layout=layout, rows=MEAN, **options), schedule) for layout, schedule in ways]


KERNELS = [call for shape in SHAPES for call in calls_of(shape)]


def laid_out(case, weight, x, counts, generator):
    """The call of ``case`` on rows ``x`` [sum of counts, K], sorted by expert, and where it puts each of them."""
    rows = rows_for(case.layout, counts, case.room)
    values = values_of(case.layout, counts, rows, generator)
    work = GroupedWork(fenced(x.new_full((rows, case.k), float("nan"))), weight, case.layout, values, case.rows, case.swiglu)
    order = torch.sort(work.owners, stable=True).indices
    places = order[rows - len(x) :]  # nobody's rows come first
    work.x[places] = x
    return work, places


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES)
def test_v53_one_weight_gives_the_same_bits_in_every_call(shape, gpu, seed):
    generator, calls = generator_of(gpu, seed), calls_of(shape)
    first = calls[0][0]
    weight = integer_weight(EXPERTS, first.n, first.k, first.interleaved, generator)
    counts = draw("ragged", EXPERTS, MEAN, generator)
    x = integers(int(counts.sum()), first.k, generator)
    owners = torch.arange(EXPERTS, device=gpu).repeat_interleave(counts)
    results = {"indexed": chord_jit.indexed(x, weight, align_blocks(owners.view(-1, 1), 16, EXPERTS, checked=True), swiglu=first.swiglu)}
    for case, schedule in calls:
        work, places = laid_out(case, weight, x, counts, generator)
        assert torch.equal(work.owners[places], owners)
        with forced(schedule):
            results[f"{case.layout} by {schedule}"] = work.fenced_call(checked=True)[places]
    if not first.swiglu:  # its exponential is an approximation, the same one in every kernel
        results["FP64"] = work.expected()[places].bfloat16()
    right = results["indexed"]
    wrong = {name: int((bits(out) != bits(right)).sum()) for name, out in results.items() if not torch.equal(bits(out), bits(right))}
    assert not wrong, f"outputs that differ from indexed, of {right.numel()}: {wrong}"


@pytest.mark.parametrize("mode", ["contiguous", "masked"])
def test_a_mode_changes_no_byte(mode, gpu):
    codes, scale = codes_of(3, 72, 96, gpu)
    assert torch.equal(pack_w4a16_grouped(codes, scale, mode=mode).data, pack_w4a16(codes, scale).data)
