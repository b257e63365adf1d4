"""Why an indexed call is refused: the rules of ``indexed._fits``, one by one, each with its values and remedy."""

from __future__ import annotations

import torch

from chord_jit.errors import ChordInternalError, InputError
from chord_jit.families.refusals import check_operands, check_swiglu, on_host
from chord_jit.formats.w4a16_layout import PackedW4A16
from chord_jit.routing.indexed import IndexedRouting, check_trusted

#: The operation, as errors name it: a call, and the choice of its kernel.
ASKED = "run indexed W4A16"
CHOOSE = "choose a kernel for indexed W4A16"


def weights_fit(topk_weights: torch.Tensor, routing: IndexedRouting, index: int) -> bool:
    """Whether routing weights are contiguous FP32, one per routed row, on CUDA device ``index``, -1 being the CPU."""
    return (
        isinstance(topk_weights, torch.Tensor) and topk_weights.dtype is torch.float32 and topk_weights.get_device() == index
        and topk_weights.numel() == routing.routed_rows and topk_weights.is_contiguous()
    )  # fmt: skip


def refuse_call(x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, swiglu: bool, topk_weights: torch.Tensor | None) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule that the call breaks; returns for one ``on_host`` alone."""
    check_operands(ASKED, x, weight, "indexed")
    check_trusted(routing, rows=x.shape[0], experts=weight.experts, device=x.device)
    if swiglu:
        check_swiglu(ASKED, weight)
    if topk_weights is not None and not weights_fit(topk_weights, routing, weight.place[0]):
        given = {name: getattr(topk_weights, name, type(topk_weights).__name__) for name in ("dtype", "shape", "device")}
        raise InputError(
            f"{ASKED} with routing weights", "topk_weights must be contiguous FP32, one per routed row, on the device of x",
            {**given, "routed_rows": routing.routed_rows}, "pass the router's weights as float32 [M, top_k]",
        )
    if not on_host(x):
        raise ChordInternalError(ASKED, "a refused call must break a rule", {"x": list(x.shape), "routing": routing}, "report this call")
