"""One packed weight from one routed row to 16384: which kernel serves a call changes, the weight and the results do not."""

import pytest
import torch

from chord_jit import align_blocks, block_m_for
from chord_jit.families.indexed import FAMILY
from chord_jit.jit.warmup import warm_up
from tests.gpu.compare import assert_close
from tests.gpu.routers import poisoned
from tests.gpu.tensors import fenced, generator_of, random_bytes
from tests.gpu.workload import Work

EXPERTS, N, K = 48, 4096, 7168
ROWS = [1 << power for power in range(15)]
#: Packed bytes of a weight: half a byte of code, and two bytes of scale for each 32.
BYTES_PER_WEIGHT = 0.5 + 2 / 32


@pytest.mark.quick
def test_one_weight_serves_every_number_of_rows(gpu, seed):
    """EP8 gate/up of Kimi K2. Row i of the output depends on row i alone, so one reference over all rows serves every call."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(gpu)
    weight = random_bytes(EXPERTS, N, K, gpu, seed)
    assert weight.nbytes == torch.cuda.memory_allocated(gpu) - before == EXPERTS * N * K * BYTES_PER_WEIGHT
    generator, packed = generator_of(gpu, seed), weight.data.clone()
    x = torch.randn(ROWS[-1], K, generator=generator, device=gpu).bfloat16()
    owners = torch.randint(0, EXPERTS, (ROWS[-1], 1), generator=generator, device=gpu)
    exact = Work(x, weight, align_blocks(owners, 8, EXPERTS)).expected()
    works = []
    for rows in ROWS:
        routing = align_blocks(owners[:rows], block_m_for(weight, rows / EXPERTS), EXPERTS)
        works.append(Work(fenced(x[:rows]), weight, poisoned(routing, generator)))
    schedules = [FAMILY.schedule(work.problem) for work in works]
    report = warm_up([FAMILY.spec(work.problem, schedule) for work, schedule in zip(works, schedules, strict=True)])
    assert not report.failed, str(report)
    for work, schedule in zip(works, schedules, strict=True):
        out = work.fenced_call(checked=True)
        try:
            assert_close(out, exact[: len(out)], work.numerics)
        except AssertionError as error:
            pytest.fail(f"{len(out)} rows by {schedule}: {error}")
    assert torch.equal(weight.data, packed), "a call changed the weight"
    taken = [schedule.kernel for schedule in schedules]
    wide = taken.index("w4a16_wgmma")
    assert 0 < wide and set(taken[:wide]) == {"w4a16_mma"} and set(taken[wide:]) == {"w4a16_wgmma"}, f"no one hand-over: {taken}"


def test_a_step_of_many_rows_allocates_its_result_and_no_second_weight(gpu, seed):
    """Beyond the weight's one copy a prefill call leaves nothing behind, and needs its output and the sums of cut tiles."""
    weight = random_bytes(EXPERTS, N, K, gpu, seed)
    generator = generator_of(gpu, seed)
    x = torch.randn(4096, K, generator=generator, device=gpu).bfloat16()
    owners = torch.randint(0, EXPERTS, (4096, 1), generator=generator, device=gpu)
    work = Work(x, weight, align_blocks(owners, block_m_for(weight, 4096 / EXPERTS), EXPERTS))
    out = work.call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    work.call(out=out)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(gpu) == before
    assert torch.cuda.max_memory_allocated(gpu) - before <= 64 << 20
