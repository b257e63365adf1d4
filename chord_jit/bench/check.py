"""Whether a timed kernel computes the right thing: relative L2 error over every output element."""

from __future__ import annotations

import torch

from chord_jit.bench.workload import Inputs
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.reference.indexed import indexed
from chord_jit.routing.indexed import align_blocks

_REFERENCE_BLOCK = 8


def exact(weight: PackedW4A16, inputs: Inputs, *, swiglu: bool) -> torch.Tensor:
    """The FP64 result, float64 [routed rows, N or N/2]."""
    return indexed(inputs.x, weight, align_blocks(inputs.topk_ids, _REFERENCE_BLOCK, weight.experts), swiglu=swiglu)


def relative_l2(out: torch.Tensor, wanted: torch.Tensor) -> float:
    """``|out - wanted| / |wanted|`` in FP64; infinite where ``out`` holds a NaN or an infinity, as an unwritten element does."""
    if not bool(out.isfinite().all()):
        return float("inf")
    return float((out.double() - wanted).norm() / wanted.norm())
