"""Offsets beyond 2^31, in the weight, in the activations and in the output."""

import pytest
import torch

import chord_jit
from chord_jit import align_blocks
from tests.gpu.cases import Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import CUT, named
from tests.gpu.tensors import POISON, fenced, generator_of, random_bytes, weight_of
from tests.gpu.workload import Work, forced

FAR = [(Case(3, 7168, 7168, 120, 1, 16), None), (Case(3, 7168, 7168, 120, 1, 64), CUT)]
KERNELS = [(Case(384, 4096, 7168, 3, 4, 8), None)]


def test_v46_weight_of_more_than_2_31_bytes(gpu, seed):
    """All experts of Kimi K2 on one GPU: the last ones lie 6.3 GB behind the first."""
    weight = random_bytes(384, 4096, 7168, gpu, seed)
    assert weight.nbytes > 2**32
    topk_ids = torch.tensor([[0, 127, 128, 383], [383, 382, 260, 1], [383, 129, 200, 300]], device=gpu)
    x = torch.randn(3, 7168, generator=generator_of(gpu, seed), device=gpu).bfloat16()
    work = Work(fenced(x), weight, align_blocks(topk_ids, 8, 384))
    assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("call", named(FAR))
def test_v46_v54_activations_and_output_of_more_than_2_31_elements(call, gpu, seed):
    """300,032 rows x 7168 on both sides; 64 rows at each end are routed, and no other row is read or written."""
    case, schedule = call
    rows, size, ends = 300_032, 7168, 64
    assert rows * size > 2**31
    generator = generator_of(gpu, seed)
    x = torch.full((rows, size), float("nan"), dtype=torch.bfloat16, device=gpu)
    ids = torch.cat((torch.arange(ends, device=gpu), torch.arange(rows - ends, rows, device=gpu)))
    x[ids] = torch.randn(2 * ends, size, generator=generator, device=gpu).bfloat16()
    topk_ids = torch.full((rows, 1), -1, dtype=torch.int32, device=gpu)
    topk_ids[ids] = torch.randint(0, 3, (2 * ends, 1), dtype=torch.int32, generator=generator, device=gpu)
    out = torch.full((rows, size), POISON, dtype=torch.int16, device=gpu).view(torch.bfloat16)
    weight = weight_of(3, size, size, False, gpu)
    with forced(schedule):
        chord_jit.indexed(x, weight, align_blocks(topk_ids, case.block_m, 3), expected_rows=40.0, out=out)
        assert_right(out[ids], Work(x[ids], weight, align_blocks(topk_ids[ids], case.block_m, 3), hint=40.0))
    assert bool((out.view(torch.int16)[ends:-ends] == POISON).all())
