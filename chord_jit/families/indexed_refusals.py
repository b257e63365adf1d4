"""Why an indexed call is refused: the rules of ``indexed._fits``, one by one, each with its values and remedy."""

from __future__ import annotations

from typing import NoReturn

import torch

from chord_jit.errors import ChordInternalError, InputError, InputTypeError
from chord_jit.formats.w4a16_layout import PackedW4A16, require_layout
from chord_jit.routing.indexed import IndexedRouting, check_trusted
from chord_jit.routing.indexed.contract import INT32_MAX

_ASKED = "run indexed W4A16"
_CHOOSE = "choose a kernel for indexed W4A16"


def weights_fit(topk_weights: torch.Tensor, routing: IndexedRouting, index: int) -> bool:
    """Whether routing weights are contiguous FP32, one per routed row, on CUDA device ``index``."""
    return (
        isinstance(topk_weights, torch.Tensor) and topk_weights.dtype is torch.float32 and topk_weights.get_device() == index
        and topk_weights.numel() == routing.routed_rows and topk_weights.is_contiguous()
    )  # fmt: skip


def refuse_call(x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, swiglu: bool, topk_weights: torch.Tensor | None) -> NoReturn:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule that the call breaks."""
    require_layout(weight)
    if not isinstance(x, torch.Tensor) or x.dtype is not torch.bfloat16 or x.dim() != 2:
        raise InputTypeError(
            _ASKED, "x must be a BF16 matrix [M, K]", {"x": f"{getattr(x, 'dtype', type(x).__name__)} {list(getattr(x, 'shape', []))}"},
            "pass activations as torch.bfloat16 [M, K]",
        )
    if not x.is_cuda or weight.device != x.device:
        raise InputError(
            _ASKED, "x and weight must lie on one CUDA device", {"x": x.device, "weight": weight.device},
            "move both to the GPU; on a CPU use chord_jit.reference",
        )
    if weight.place[1] % 16:
        raise InputError(
            _ASKED, "a packed weight must be 16-byte aligned", {"address % 16": weight.place[1] % 16}, "use what pack_w4a16 returns"
        )
    if x.shape[1] != weight.k or not x.is_contiguous() or x.data_ptr() % 16:
        raise InputError(
            _ASKED, "x must be contiguous, 16-byte aligned, and as wide as the weight's K",
            {"x": list(x.shape), "strides": list(x.stride()), "address % 16": x.data_ptr() % 16, "K": weight.k}, "pass x.contiguous()",
        )
    check_trusted(routing, rows=x.shape[0], experts=weight.experts, device=x.device)
    if swiglu and not weight.interleaved:
        raise InputError(
            f"{_ASKED} with SwiGLU", "gate and up must be packed interleaved", {"interleaved": weight.interleaved},
            "pack the weight with interleave=True",
        )
    if topk_weights is not None and not weights_fit(topk_weights, routing, weight.place[0]):
        given = {name: getattr(topk_weights, name, type(topk_weights).__name__) for name in ("dtype", "shape", "device")}
        raise InputError(
            f"{_ASKED} with routing weights", "topk_weights must be contiguous FP32, one per routed row, on the device of x",
            {**given, "routed_rows": routing.routed_rows}, "pass the router's weights as float32 [M, top_k]",
        )
    raise ChordInternalError(_ASKED, "a refused call must break a rule", {"x": list(x.shape), "routing": routing}, "report this call")


def check_shape(experts: int, n: int, k: int) -> None:
    """Refuse an expert's weight that no padding serves: ``InputError``."""
    if experts < 1 or n < 8 or n % 8 or k < 32 or k % 32:
        raise InputError(
            _CHOOSE, "experts must be 1 or more, N a positive multiple of 8, K a positive multiple of 32",
            {"experts": experts, "N": n, "K": k}, "cut the layer over fewer ranks, or pad the weight with rows of code 8",
        )


def check_hint(expected_rows: float) -> None:
    """Refuse rows per expert that are no count: ``InputTypeError`` or ``InputError``."""
    if not isinstance(expected_rows, (int, float)) or isinstance(expected_rows, bool):
        raise InputTypeError(_CHOOSE, "expected_rows must be a number", {"expected_rows": repr(expected_rows)}, "pass rows per expert")
    if not 0 <= expected_rows <= INT32_MAX:
        raise InputError(
            _CHOOSE, "expected_rows must lie in 0..2^31-1", {"expected_rows": expected_rows}, "pass rows per expert, or None"
        )


def refuse_out(out: torch.Tensor, shape: tuple[int, int], where: torch.device) -> NoReturn:
    """Raise ``InputError`` for an ``out`` that does not fit."""
    given = {name: getattr(out, name, type(out).__name__) for name in ("shape", "dtype", "device")}
    if isinstance(out, torch.Tensor):
        given["address % 16"] = out.data_ptr() % 16
    raise InputError(
        f"{_ASKED} into out", "out must be contiguous, 16-byte aligned BF16 [routed rows, columns] on the device of x",
        {**given, "wanted": list(shape), "x": where}, "allocate out with that shape, or leave it out",
    )
