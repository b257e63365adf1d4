"""Packing on the GPU: the same bytes as on the CPU, fast, and with little scratch."""

import time

import pytest
import torch

from chord_jit import pack_w4a16, unpack_w4a16
from tests.gpu.tensors import codes_of


@pytest.mark.quick
@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("experts, n, k", [(3, 72, 96), (2, 384, 1344), (5, 8, 32)])
def test_same_bytes_as_on_the_cpu(experts, n, k, interleave, gpu):
    codes, scale = codes_of(experts, n, k, gpu)
    packed = pack_w4a16(codes, scale, interleave=interleave)
    assert torch.equal(packed.data.cpu(), pack_w4a16(codes.cpu(), scale.cpu(), interleave=interleave).data)
    back, back_scale = unpack_w4a16(packed)
    assert torch.equal(back, codes) and torch.equal(back_scale.view(torch.int16), scale.view(torch.int16))


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("form", ["codes", "words"])
def test_ep8_gate_up_packs_in_half_a_second_with_one_expert_of_scratch(form, interleave, gpu):
    experts, n, k = 48, 4096, 7168
    source = torch.randint(0, 16, (experts, n, k), dtype=torch.uint8, device=gpu)
    if form == "words":
        source = torch.randint(-(2**31), 2**31 - 1, (experts, n, k // 8), dtype=torch.int32, device=gpu)
    scale = (torch.rand(experts, n, k // 32, device=gpu) + 0.5).bfloat16()
    pack_w4a16(source[:1], scale[:1], interleave=interleave)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    packed = pack_w4a16(source, scale, interleave=interleave)
    torch.cuda.synchronize()
    seconds, scratch = time.perf_counter() - start, torch.cuda.max_memory_allocated() - before - packed.nbytes
    assert seconds < 0.5, f"{seconds:.3f} s"
    assert scratch <= n * k * 4, f"{scratch / 2**20:.0f} MiB"
