"""Whether a timed kernel computes the right thing: relative L2 error over every output element."""

from __future__ import annotations

import torch

from chord_jit.bench.sides import Inputs
from chord_jit.formats.w4a16 import PackedW4A16


def exact(weight: PackedW4A16, inputs: Inputs, *, swiglu: bool) -> torch.Tensor:
    """The FP64 result in the shape of the output, [rows, N or N/2]; NaN in rows that no call may write."""
    return inputs.exact(weight, swiglu=swiglu)


def relative_l2(out: torch.Tensor, wanted: torch.Tensor) -> float:
    """``|out - wanted| / |wanted|`` in FP64 over the rows that are wanted.

    Infinite where such a row holds a NaN or an infinity, as an unwritten element does, and where a row that ``wanted``
    marks with NaN has been written.
    """
    idle = wanted.isnan()
    if not bool((out.isnan() == idle).all()) or bool(out.isinf().any()):
        return float("inf")
    difference = (out.double() - wanted).nan_to_num_()
    return float(difference.norm() / wanted.nan_to_num().norm())


def forget_idle(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """``out`` with NaN in the rows that are not wanted: what a kernel leaves there is no error of ours to count."""
    return out.masked_fill_(wanted.isnan(), float("nan"))
