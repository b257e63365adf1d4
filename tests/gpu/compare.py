"""Error bounds against the FP64 references, by dequantisation."""

from __future__ import annotations

import torch

from tests.gpu.workload import Work

#: Largest relative L2 error over all outputs; the pre-scaled path rounds weights, so it is the BF16 reference's twin.
EXACT = {"subnormal": 1.8e-3, "magic": 1.8e-3, "scaled": 2.4e-3}
BF16 = {"subnormal": 2.4e-3, "magic": 2.4e-3, "scaled": 1.8e-3}
SWIGLU = {"subnormal": 2.5e-3, "magic": 2.5e-3, "scaled": 3.4e-3}
#: One output may be off by a rounding and by this part of its row's RMS: FP32 sums, or weights that were rounded.
ELEMENT = {"subnormal": 2e-3, "magic": 2e-3, "scaled": 2e-2}
#: What rounding many outputs to BF16 costs by itself; over a few outputs it can be more, and the bounds grow with it.
ROUNDING = 1.66e-3


def relative(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error.norm() / of.norm())


def assert_close(got: torch.Tensor, exact: torch.Tensor, dequant: str = "subnormal", *, swiglu: bool = False) -> float:
    """Over everything, row by row and one by one; returns the slack that few outputs were given."""
    limit = SWIGLU[dequant] if swiglu else EXACT[dequant]
    assert bool(got.isfinite().all()), f"{int((~got.isfinite()).sum())} results are not finite"
    slack = max(1.0, relative(exact.bfloat16().double() - exact, exact) / ROUNDING)
    found = relative(got.double() - exact, exact)
    assert found <= limit * slack, f"relative error {found:.3e} against exact, limit {limit * slack:.3e}"
    error, rms = (got.double() - exact).abs(), exact.square().mean(1, keepdim=True).sqrt()
    rows = error.norm(dim=1) / exact.norm(dim=1)
    assert float(rows.max()) <= 3 * limit, f"row {int(rows.argmax())} of the named ones is off by {float(rows.max()):.3e}"
    wrong = (error > exact.abs() * 2**-8 + rms * ELEMENT[dequant]).nonzero()
    assert len(wrong) == 0, f"{len(wrong)} outputs are off, first at {wrong[0].tolist()} of the named rows"
    return slack


def assert_right(out: torch.Tensor, work: Work, dequant: str = "subnormal") -> None:
    """``out`` against the exact reference, and (without SwiGLU) against the one with BF16 weights."""
    exact = work.expected()
    named = ~exact.isnan().any(dim=1)
    if not bool(named.any()):
        return
    got, exact = out[named], exact[named]
    slack = assert_close(got, exact, dequant, swiglu=work.swiglu)
    if not work.swiglu:
        rounded = work.expected("bf16")[named]
        found = relative(got.double() - rounded, rounded)
        slack = max(slack, relative(rounded - exact, exact) / (BF16["subnormal"] ** 2 - ROUNDING**2) ** 0.5)
        assert found <= BF16[dequant] * slack, f"relative error {found:.3e} against BF16 weights, limit {BF16[dequant] * slack:.3e}"
