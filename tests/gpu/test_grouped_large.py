"""Grouped offsets beyond 2^31: in the weight, in the activations and in the output, in every layout."""

import pytest
import torch

from tests.gpu.compare import assert_right
from tests.gpu.grouped_cases import CUT, MMA, WHOLE, GroupedCase
from tests.gpu.grouped_workload import GroupedWork, forced
from tests.gpu.tensors import POISON, bits, fenced, generator_of, integer_weight, integers, random_bytes, weight_of

ALL_EXPERTS = GroupedCase(384, 4096, 7168, "masked", 8)
FAR_MASKED, FAR_BLOCKS = (GroupedCase(3, 7168, 7168, layout, 64) for layout in ("masked", "blocks"))
LONG = GroupedCase(3, 128, 64, "offsets", 4096)
FAR = [(FAR_MASKED, CUT), (FAR_BLOCKS, MMA)]
KERNELS = [(ALL_EXPERTS, None), (LONG, WHOLE)]


def test_v46_weight_of_more_than_2_31_bytes(gpu, seed):
    """All experts of Kimi K2 on one GPU: the last ones lie 6.3 GB behind the first."""
    weight = random_bytes(384, 4096, 7168, gpu, seed)
    assert weight.nbytes > 2**32
    counts = torch.zeros(384, dtype=torch.int32, device=gpu)
    counts[torch.tensor([0, 127, 128, 260, 382, 383], device=gpu)] = torch.tensor([8, 1, 5, 8, 3, 8], dtype=torch.int32, device=gpu)
    x = torch.randn(384 * 8, 7168, generator=generator_of(gpu, seed), device=gpu).bfloat16()
    work = GroupedWork(fenced(x), weight, "masked", counts, 8)
    assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("call", FAR, ids=[f"{case.layout}-{how}".replace(" ", "-") for case, how in FAR])
def test_v46_v54_activations_and_output_of_more_than_2_31_elements(call, gpu, seed):
    """300,032 rows x 7168 on both sides, 64 of the first and of the last expert at the very ends; no other row is written."""
    case, schedule = call
    rows, size, ends = 300_032 if case.layout == "blocks" else 450_048, 7168, 64
    first = rows - 128 if case.layout == "blocks" else rows // 3 * 2  # row of the last expert
    assert first * size > 2**31
    x = torch.full((rows, size), float("nan"), dtype=torch.bfloat16, device=gpu)
    named = torch.cat((torch.arange(ends, device=gpu), torch.arange(first, first + ends, device=gpu)))
    x[named] = torch.randn(2 * ends, size, generator=generator_of(gpu, seed), device=gpu).bfloat16()
    values = torch.tensor([ends, 0, ends], dtype=torch.int32, device=gpu)
    if case.layout == "blocks":
        values = torch.full((rows,), -1, dtype=torch.int32, device=gpu)
        values[named] = torch.arange(3, dtype=torch.int32, device=gpu)[::2].repeat_interleave(ends)
    out = torch.full((rows, size), POISON, dtype=torch.int16, device=gpu).view(torch.bfloat16)
    work = GroupedWork(x, weight_of(3, size, size, False, gpu), case.layout, values, ends)
    few = GroupedWork(x[named], work.weight, "offsets", torch.tensor([0, ends, ends, 2 * ends], device=gpu), ends)
    with forced(schedule):
        work.call(out=out)
        assert_right(out[named], few)
    assert bool((bits(out)[ends:first] == POISON).all()) and bool((bits(out)[first + ends :] == POISON).all())


def test_v46_more_than_2_31_elements_of_short_rows(gpu, seed):
    """33.6 million rows of integers that repeat: each row of the output equals FP64's, and five rows behind the last stay as they were."""
    rows, period, k, n, behind = 33_555_433, 4096, 64, 128, 5
    assert rows * k > 2**31
    generator = generator_of(gpu, seed)
    pattern, weight = integers(period, k, generator), integer_weight(3, n, k, False, generator)
    x = pattern.repeat(-(-rows // period), 1)[:rows]
    bounds = [0, 20_000_001, 20_000_130, rows - behind]
    out = torch.full((rows, n), POISON, dtype=torch.int16, device=gpu).view(torch.bfloat16)
    work = GroupedWork(x, weight, "offsets", torch.tensor(bounds, device=gpu), 4096)
    with forced(WHOLE):
        work.call(out=out)
    few = torch.tensor([0, 1, 2, 3], device=gpu) * period
    right = GroupedWork(pattern.repeat(3, 1), weight, "offsets", few, 1).expected().bfloat16().view(3, period, n)
    for expert in range(3):
        for begin in range(bounds[expert], bounds[expert + 1], 1 << 22):
            end = min(begin + (1 << 22), bounds[expert + 1])
            wanted = right[expert, torch.arange(begin, end, device=gpu) % period]
            wrong = (bits(out[begin:end]) != bits(wanted)).any(dim=1).nonzero()
            assert len(wrong) == 0, f"{len(wrong)} rows of expert {expert} are wrong, first row {begin + int(wrong[0])}"
    assert bool((bits(out)[-behind:] == POISON).all()), "wrote behind the last offset"
