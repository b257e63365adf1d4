"""Error bounds against the FP64 references, by dequantisation."""

from __future__ import annotations

import torch

from tests.gpu.workload import Work

#: Largest relative L2 error over all outputs; the pre-scaled path rounds weights, so it is the BF16 reference's twin.
EXACT = {"subnormal": 1.8e-3, "magic": 1.8e-3, "scaled": 2.4e-3}
BF16 = {"subnormal": 2.4e-3, "magic": 2.4e-3, "scaled": 1.8e-3}
SWIGLU = {"subnormal": 2.5e-3, "magic": 2.5e-3, "scaled": 3.4e-3}
#: What rounding many outputs to BF16 costs by itself; over a few outputs it can be more, and the bounds grow with it.
ROUNDING = 1.66e-3


def relative(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error.norm() / of.norm())


def assert_right(out: torch.Tensor, work: Work, dequant: str = "subnormal") -> None:
    """``out`` against the exact reference, over everything and row by row, and (without SwiGLU) against the BF16 one."""
    exact = work.expected()
    named = ~exact.isnan().any(dim=1)
    if not bool(named.any()):
        return
    got, exact = out[named].double(), exact[named]
    assert bool(got.isfinite().all()), f"{int((~got.isfinite()).sum())} results are not finite"
    slack = max(1.0, relative(exact.bfloat16().double() - exact, exact) / ROUNDING)
    limit = SWIGLU[dequant] if work.swiglu else EXACT[dequant]
    found = relative(got - exact, exact)
    assert found <= limit * slack, f"relative error {found:.3e} against exact, limit {limit * slack:.3e}"
    rows = (got - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(rows.max()) <= 3 * limit, f"row {int(rows.argmax())} of the named ones is off by {float(rows.max()):.3e}"
    if not work.swiglu:
        rounded = work.expected("bf16")[named]
        found = relative(got - rounded, rounded)
        slack = max(slack, relative(rounded - exact, exact) / (BF16["subnormal"] ** 2 - ROUNDING**2) ** 0.5)
        assert found <= BF16[dequant] * slack, f"relative error {found:.3e} against BF16 weights, limit {BF16[dequant] * slack:.3e}"
