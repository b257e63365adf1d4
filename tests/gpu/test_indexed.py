"""Values of every case against both references, between fences, with poison wherever nothing is promised."""

import pytest
import torch

from chord_jit import align_blocks, block_m_for, pack_w4a16
from chord_jit.device import facts
from tests.gpu.cases import CASES, Case
from tests.gpu.compare import assert_close, assert_right
from tests.gpu.tensors import fenced, weight_of
from tests.gpu.workload import Work, build

KERNELS = [(Case(40, 128, 192, 820, 1, block_m), None) for block_m in (8, 16)]
KERNELS += [(Case(300, 128, k, 300, 1, 8), None) for k in (64, 1344, 7168)] + [(Case(2, 128, 256, 3, 1, 8), None)]


@pytest.mark.parametrize("case", CASES)
def test_v47_v50_values(case, gpu, seed):
    work = build(case, gpu, seed)
    assert_right(work.fenced_call(), work)


@pytest.mark.quick
@pytest.mark.parametrize("block_m", [8, 16, 24, 32, 64])
def test_every_number_of_rows(block_m, gpu):
    """1 to 40 rows of an expert at once: every fill of a tile, every number of tiles."""
    weight = weight_of(40, 128, 192, False, gpu)
    topk_ids = torch.arange(40, device=gpu).repeat_interleave(torch.arange(1, 41, device=gpu)).view(-1, 1)
    work = Work(fenced(torch.randn(len(topk_ids), 192, device=gpu).bfloat16()), weight, align_blocks(topk_ids, block_m, 40))
    assert_right(work.fenced_call(), work)


@pytest.mark.quick
@pytest.mark.parametrize("k", [64, 1344, 7168])
def test_v47_every_length_of_the_last_wave(k, gpu):
    """1 to 300 tiles of one panel: fewer than SMs, whole waves, and last waves of every length around them."""
    x = fenced(torch.randn(300, k, device=gpu).bfloat16())
    weight, topk_ids = weight_of(300, 128, k, False, gpu), torch.arange(300, device=gpu).view(-1, 1)
    exact = Work(x, weight, align_blocks(topk_ids, 8, 300)).expected()
    sms = facts(gpu.index).sms
    for tiles in (1, 2, 3, 7, 33, 66, 67, sms - 1, sms, sms + 1, sms + 30, 2 * sms - 1, 2 * sms, 2 * sms + 1, 299, 300):
        some = torch.where(topk_ids < tiles, topk_ids, -1)
        out = Work(x, weight, align_blocks(some, 8, 300)).fenced_call()
        assert_close(out[:tiles], exact[:tiles])


@pytest.mark.parametrize("expected_rows", [0.02, 1, 7, 9, 40, 200])
@pytest.mark.parametrize("swiglu", [False, True])
def test_block_m_for_and_its_hint_suit_any_routing(expected_rows, swiglu, gpu):
    weight = weight_of(8, 384, 256, swiglu, gpu)
    block_m = block_m_for(weight, expected_rows, swiglu=swiglu)
    topk_ids = torch.rand(12, 8, device=gpu).topk(2).indices
    x = fenced(torch.randn(12, 256, device=gpu).bfloat16())
    work = Work(x, weight, align_blocks(topk_ids, block_m, 8), swiglu, hint=expected_rows)
    assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("code", [0, 8, 15])
def test_weights_of_one_code(code, gpu):
    """Zero weights give zeros, and the two ends of the code's range, where a folded zero point shows, the right values."""
    codes = torch.full((2, 128, 256), code, dtype=torch.uint8, device=gpu)
    scale = (torch.rand(2, 128, 8, device=gpu) + 0.5).bfloat16()
    topk_ids = torch.tensor([[0], [1], [1]], device=gpu)
    work = Work(fenced(torch.randn(3, 256, device=gpu).bfloat16()), pack_w4a16(codes, scale), align_blocks(topk_ids, 8, 2))
    out = work.fenced_call()
    if code == 8:
        assert not out.any()
    else:
        assert_right(out, work)
