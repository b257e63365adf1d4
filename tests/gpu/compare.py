"""Error bounds against the FP64 references, by how a kernel makes its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Bounds:
    """Largest relative L2 error over all outputs: of plain ones against either reference, of SwiGLU against the exact one.

    ``element``, ``swiglu_element``: one output may be off by a rounding and by this part of its row's RMS: FP32 sums, or
    weights that were rounded (with SwiGLU the error of one factor is multiplied by the other). ``row``: a row's, by the whole's.
    """

    exact: float
    bf16: float
    swiglu: float
    element: float
    swiglu_element: float
    row: int = 3


#: By dequantisation of the m16n8k16 kernel: the first two multiply exact weights, the last one's are rounded to BF16.
DEQUANTS = {
    "subnormal": Bounds(1.8e-3, 2.4e-3, 2.5e-3, 2e-3, 2e-3),
    "magic": Bounds(1.8e-3, 2.4e-3, 2.5e-3, 2e-3, 2e-3),
    "scaled": Bounds(2.4e-3, 1.8e-3, 3.4e-3, 2e-2, 2e-2),
}
#: And of the WGMMA kernel, whose weights are rounded once to BF16.
BOUNDS = {**DEQUANTS, "wgmma": Bounds(2.4e-3, 1.8e-3, 3.4e-3, 2e-2, 6e-2, row=4)}
#: What rounding many outputs to BF16 costs by itself; over a few outputs it can be more, and the bounds grow with it.
ROUNDING = 1.66e-3


def relative(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error.norm() / of.norm())


def assert_close(got: torch.Tensor, exact: torch.Tensor, numerics: str = "subnormal", *, swiglu: bool = False) -> float:
    """Over everything, row by row and one by one; returns the slack that few outputs were given."""
    bounds = BOUNDS[numerics]
    limit, element = (bounds.swiglu, bounds.swiglu_element) if swiglu else (bounds.exact, bounds.element)
    bad = (~got.isfinite()).nonzero()
    assert len(bad) == 0, f"{len(bad)} of {got.numel()} results are not finite, first at {bad[0].tolist()} of the named rows"
    slack = max(1.0, relative(exact.bfloat16().double() - exact, exact) / ROUNDING)
    found = relative(got.double() - exact, exact)
    assert found <= limit * slack, f"relative error {found:.3e} against exact, limit {limit * slack:.3e}"
    error, rms = (got.double() - exact).abs(), exact.square().mean(1, keepdim=True).sqrt()
    rows = error.norm(dim=1) / exact.norm(dim=1)
    worst = float(rows.max())
    most = bounds.row * limit
    assert worst <= most, f"row {int(rows.argmax())} of the named ones is off by {worst:.3e}, limit {most:.3e}"
    wrong = (error > exact.abs() * 2**-8 + rms * element).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise AssertionError(
            f"{len(wrong)} outputs are off by more than a rounding and {element:.0e} of their row's RMS, first at [{row}, {column}] of the "
            f"named rows: {float(got[row, column]):.6g} for {float(exact[row, column]):.6g}, RMS {float(rms[row]):.3g}"
        )
    return slack


def assert_right(out: torch.Tensor, work: object, numerics: str | None = None) -> None:
    """``out`` against the exact reference, and (without SwiGLU) against the one with BF16 weights.

    ``work``: a ``Work`` or a ``GroupedWork``. ``numerics``: whose bounds hold, by default those of the work's own kernel.
    """
    numerics, exact = numerics or work.numerics, work.expected()
    named = ~exact.isnan().any(dim=1)
    if not bool(named.any()):
        return
    got, exact = out[named], exact[named]
    slack = assert_close(got, exact, numerics, swiglu=work.swiglu)
    if not work.swiglu:
        rounded = work.expected("bf16")[named]
        found, limit = relative(got.double() - rounded, rounded), BOUNDS[numerics].bf16
        slack = max(slack, relative(rounded - exact, exact) / (BOUNDS["subnormal"].bf16 ** 2 - ROUNDING**2) ** 0.5)
        assert found <= limit * slack, f"relative error {found:.3e} against BF16 weights, limit {limit * slack:.3e}"
