"""Range of the three dequantisations, non-finite activations, and the same bits every time."""

from dataclasses import replace

import pytest
import torch

from chord_jit import knobs
from tests.gpu.cases import Case
from tests.gpu.compare import DEQUANTS, assert_right
from tests.gpu.launches import assert_same_bits
from tests.gpu.workload import build

SMALL = Case(8, 384, 1344, 12, 2, 8)
PAIRS = replace(SMALL, interleaved=True, swiglu=True)
WEIGHTED = replace(SMALL, weighted=True)
KERNELS = [(case, dequant) for case in (SMALL, PAIRS, WEIGHTED) for dequant in DEQUANTS]
WHOLE_RANGE = pytest.mark.parametrize("power", [-50, -30, -10, 0, 10, 30, 50])


@pytest.mark.parametrize("dequant", DEQUANTS)
@WHOLE_RANGE
def test_activations_of_any_size_in_the_promised_range(dequant, power, gpu, seed):
    work = build(SMALL, gpu, seed, power=power)
    with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
        assert_right(work.fenced_call(), work, dequant)


@pytest.mark.parametrize("dequant", DEQUANTS)
def test_rows_of_very_different_size_do_not_disturb_each_other(dequant, gpu, seed):
    work = build(SMALL, gpu, seed)
    work.x.mul_(torch.exp2(torch.linspace(-50, 50, 12, device=gpu).round()).unsqueeze(1))
    with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
        out = work.fenced_call()
    exact = work.expected()
    assert float(((out.double() - exact).norm(dim=1) / exact.norm(dim=1)).max()) < 3 * DEQUANTS[dequant].exact


@pytest.mark.parametrize("dequant", DEQUANTS)
@pytest.mark.parametrize("case", [PAIRS, WEIGHTED], ids=str)
def test_swiglu_and_routing_weights_of_every_dequantisation(case, dequant, gpu, seed):
    work = build(case, gpu, seed)
    with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
        assert_right(work.fenced_call(), work, dequant)


@pytest.mark.quick
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize("dequant", DEQUANTS)
def test_non_finite_activations_stay_in_their_row(dequant, bad, gpu, seed):
    """Rows 1 and 10 hold one such value each, at the first and the last k: their outputs are non-finite, all others the same bits."""
    work = build(SMALL, gpu, seed)
    with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
        clean = work.fenced_call()
        work.x[1, 0] = work.x[10, -1] = bad
        spoilt = work.fenced_call()
    hit = torch.zeros(24, dtype=torch.bool, device=gpu)
    hit[[2, 3, 20, 21]] = True
    # A code of 8 is a zero weight: zero times infinity is NaN, zero times a folded zero point may not be.
    assert float(spoilt[hit].isfinite().float().mean()) == 0
    assert torch.equal(spoilt[~hit].view(torch.int16), clean[~hit].view(torch.int16))


REPEATED = [
    (1000, Case(48, 4096, 7168, 20, 8, 8, interleaved=True, swiglu=True)),
    (20, Case(48, 7168, 2048, 160, 1, 8, weighted=True)),
    (20, Case(384, 512, 7168, 20, 8, 8, "ep", ids=torch.int64)),
    (20, Case(8, 768, 1344, 17, 3, 16, "hot", interleaved=True)),
    (20, Case(8, 72, 96, 9, 2, 8, "dropped")),
]


@pytest.mark.parametrize("repeats, case", REPEATED, ids=[f"{repeats}-{case}" for repeats, case in REPEATED])
def test_v53_same_bits_every_time(repeats, case, gpu, seed):
    work = build(case, gpu, seed)
    assert_same_bits(work, work.fenced_call(), repeats)
