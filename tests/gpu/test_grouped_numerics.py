"""Range of the WGMMA kernel's numbers, and non-finite activations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chord_jit import pack_w4a16
from tests.gpu.compare import BOUNDS, assert_right, relative
from tests.gpu.grouped_cases import CUT, PAIRS, shaped
from tests.gpu.grouped_workload import GroupedWork, build, forced
from tests.gpu.tensors import bits, fenced

PLAIN, SWIGLU = shaped("offsets"), shaped("masked", **PAIRS)
KERNELS = [(PLAIN, CUT), (SWIGLU, CUT), (shaped("masked"), CUT)]


@pytest.mark.parametrize("power", [-50, -30, -10, 10, 30, 50])
def test_activations_of_any_size_in_the_promised_range(power, gpu, seed):
    work = build(PLAIN, gpu, seed, power=power)
    with forced(CUT):
        assert_right(work.fenced_call(), work)


def test_rows_of_very_different_size_do_not_disturb_each_other(gpu, seed):
    work = build(PLAIN, gpu, seed)
    work.x.mul_(torch.exp2(torch.linspace(-50, 50, len(work.x), device=gpu).round()).unsqueeze(1))
    with forced(CUT):
        out, owned = work.fenced_call(), work.owned
    exact = work.expected()[owned]
    rows = (out[owned].double() - exact).norm(dim=1) / exact.norm(dim=1)
    limit = BOUNDS["wgmma"].row * BOUNDS["wgmma"].exact
    assert float(rows.max()) < limit, f"owned row {int(rows.argmax())} is off by {float(rows.max()):.3e}, limit {limit:.3e}"


@pytest.mark.parametrize("case", [PLAIN, SWIGLU], ids=str)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")], ids=str)
def test_non_finite_activations_stay_in_their_row(bad, case, gpu, seed):
    """Three rows hold one such value each, at the first, a middle and the last k: all others keep their bits."""
    work = build(case, gpu, seed)
    owned = work.owned.nonzero().squeeze(1)
    rows = owned[[0, len(owned) // 2, -1]]
    with forced(CUT):
        clean = work.fenced_call()
        work.x[rows, torch.tensor([0, 400, 767], device=gpu)] = bad
        spoilt = work.fenced_call()
    others = torch.ones(len(work.x), dtype=torch.bool, device=gpu)
    others[rows] = False
    assert torch.equal(bits(spoilt)[others], bits(clean)[others])
    if not case.swiglu:  # a gate of minus infinity closes: zero
        assert not bool(spoilt[rows].isfinite().any())


@pytest.mark.parametrize("code", [0, 8, 15])
def test_weights_of_one_code(code, gpu):
    """Zero weights give zeros, and the two ends of the code's range, where the zero point shows, the right values."""
    codes = torch.full((2, 1024, 768), code, dtype=torch.uint8, device=gpu)
    weight = pack_w4a16(codes, (torch.rand(2, 1024, 24, device=gpu) + 0.5).bfloat16())
    counts = torch.tensor([2, 3], dtype=torch.int32, device=gpu)
    work = GroupedWork(fenced(torch.randn(6, 768, device=gpu).bfloat16()), weight, "masked", counts, 3)
    with forced(CUT):
        out, owned = work.fenced_call(), work.owned
    if code == 8:
        assert not out[owned].any()
        return
    # Against the same BF16 weights only the output is rounded, and five rows decide by chance how much that costs.
    rounded = work.expected("bf16")[owned]
    assert relative(out[owned].double() - rounded, rounded) <= 1.05 * relative(rounded.bfloat16().double() - rounded, rounded)
    # The 32 weights of a group are equal, so their roundings add up instead of averaging out, and the bound over many outputs does
    # not hold against exact weights. What always does: each product is off by 2^-8 of itself at most, half a unit of BF16, and
    # the output by as much again. All weights have one sign, so the sum of the products' sizes is the result for |x|.
    exact, sizes = work.expected()[owned], replace(work, x=work.x.abs()).expected()[owned].abs()
    assert bool(((out[owned].double() - exact).abs() <= 2**-8 * (sizes + exact.abs()) * 1.01).all())
