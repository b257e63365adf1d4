"""Why a call is refused: the rules that every W4A16 family shares, each with its values and remedy."""

from __future__ import annotations

from typing import NoReturn

import torch

from chord_jit import knobs
from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.w4a16_layout import PackedW4A16, require_layout, require_mode
from chord_jit.routing.checks import INT32_MAX


def check_operands(
    asked: str, x: torch.Tensor, weight: PackedW4A16, call: str, *, form: str = "a BF16 matrix [M, K]", dims: tuple[int, ...] = (2,),
    reader: str = "",
) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule of activations and weight that a call breaks.

    ``call``: as a packed weight's mode names it. ``form``, ``dims``: what x must be. ``reader``: why it must be aligned.
    """
    require_layout(weight)
    require_mode(weight, call)
    if not isinstance(x, torch.Tensor) or x.dtype is not torch.bfloat16 or x.dim() not in dims:
        raise InputTypeError(
            asked, f"x must be {form}", {"x": f"{getattr(x, 'dtype', type(x).__name__)} {list(getattr(x, 'shape', []))}"},
            "pass activations as torch.bfloat16 of that shape",
        )
    if weight.device != x.device or not (x.is_cuda or on_host(x)):
        raise InputError(
            asked, "x and weight must lie on one CUDA device", {"x": x.device, "weight": weight.device},
            "move both to the GPU; on a CPU use chord_jit.reference, or set CHORD_BACKEND=reference in tests",
        )
    check_aligned(asked, weight)
    if x.shape[-1] != weight.k or not x.is_contiguous() or x.data_ptr() % 16:
        if x.shape[-1] != weight.k:
            remedy = "pass the activations of this layer"
        else:
            remedy = "pass x.clone()" if x.is_contiguous() else "pass x.contiguous()"
        raise InputError(
            asked, f"x must be contiguous, 16-byte aligned{reader}, and as wide as the weight's K",
            {"x": list(x.shape), "strides": list(x.stride()), "address % 16": x.data_ptr() % 16, "K": weight.k}, remedy,
        )


def check_aligned(asked: str, weight: PackedW4A16) -> None:
    """Refuse a packed weight that no bulk copy can read: ``InputError``."""
    if weight.place[1] % 16:
        raise InputError(
            asked, "a packed weight must be 16-byte aligned", {"address % 16": weight.place[1] % 16}, "use what pack_w4a16 returns"
        )


def on_host(x: torch.Tensor) -> bool:
    """Whether a call over ``x`` is the reference's (``families.host``): ``x`` lies on the CPU and ``CHORD_BACKEND`` asks for it."""
    return x.device.type == "cpu" and knobs.read("CHORD_BACKEND") == "reference"


def check_swiglu(asked: str, weight: PackedW4A16) -> None:
    """Refuse SwiGLU over gate and up that do not share a lane: ``InputError``."""
    if not weight.interleaved:
        raise InputError(
            f"{asked} with SwiGLU", "gate and up must be packed interleaved", {"interleaved": weight.interleaved},
            "pack the weight with interleave=True",
        )


def check_shape(asked: str, experts: int, n: int, k: int) -> None:
    """Refuse an expert's weight that no padding serves: ``InputError``."""
    if experts < 1 or n < 8 or n % 8 or k < 32 or k % 32:
        raise InputError(
            asked, "experts must be 1 or more, N a positive multiple of 8, K a positive multiple of 32",
            {"experts": experts, "N": n, "K": k}, "cut the layer over fewer ranks, or pad the weight with rows of code 8",
        )


def check_hint(asked: str, expected_rows: float) -> None:
    """Refuse rows per expert that are no count: ``InputTypeError`` or ``InputError``."""
    if not isinstance(expected_rows, (int, float)) or isinstance(expected_rows, bool):
        raise InputTypeError(asked, "expected_rows must be a number", {"expected_rows": repr(expected_rows)}, "pass rows per expert")
    if not 0 <= expected_rows <= INT32_MAX:
        raise InputError(
            asked, "expected_rows must lie in 0..2^31-1", {"expected_rows": expected_rows}, "pass rows per expert, or None"
        )


def out_fits(out: torch.Tensor, shape: tuple[int, int], index: int) -> bool:
    """Whether a call on device ``index`` may write its result into ``out``; ``refuse_out`` says why not."""
    return (
        isinstance(out, torch.Tensor) and out.shape == shape and out.dtype is torch.bfloat16 and out.get_device() == index
        and out.is_contiguous() and out.data_ptr() % 16 == 0
    )  # fmt: skip


def refuse_out(asked: str, out: torch.Tensor, rows: str, shape: tuple[int, int], where: torch.device) -> NoReturn:
    """Raise ``InputError`` for an ``out`` that does not fit; ``rows`` says what a row of it is."""
    given = {name: getattr(out, name, type(out).__name__) for name in ("shape", "dtype", "device")}
    if isinstance(out, torch.Tensor):
        given["address % 16"] = out.data_ptr() % 16
    raise InputError(
        f"{asked} into out", f"out must be contiguous, 16-byte aligned BF16 [{rows}, columns] on the device of x",
        {**given, "wanted": list(shape), "x": where}, "allocate out with that shape, or leave it out",
    )
