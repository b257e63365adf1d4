"""Why a call of this room is refused."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.families.refusals import on_host


def check_matrix(
    asked: str, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None, *, shape: tuple[int, int] | None = None
) -> None:
    """``tensor`` must be a BF16 matrix that a kernel may read 16 bytes at a time, of ``shape``, on the device of ``like``."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.bfloat16 or tensor.dim() != 2:
        raise InputTypeError(
            asked, f"{name} must be a BF16 matrix [rows, columns]",
            {name: f"{getattr(tensor, 'dtype', type(tensor).__name__)} {list(getattr(tensor, 'shape', []))}"},
            "pass a torch.bfloat16 tensor of two dimensions",
        )
    if not tensor.is_cuda and not on_host(tensor):
        raise InputError(
            asked, f"{name} must lie on a CUDA device", {"device": tensor.device},
            "move it to the GPU; in tests set CHORD_BACKEND=reference",
        )
    if shape is not None and tuple(tensor.shape) != shape:
        raise InputError(asked, f"{name} must be {list(shape)}", {"shape": list(tensor.shape)}, "pass a tensor of that shape")
    if not tensor.is_contiguous() or tensor.data_ptr() % 16 or tensor.shape[1] % 8:
        raise InputError(
            asked, f"{name} must be contiguous, 16-byte aligned, with a multiple of 8 columns",
            {"shape": list(tensor.shape), "strides": list(tensor.stride()), "address % 16": tensor.data_ptr() % 16},
            "pad its columns" if tensor.shape[1] % 8 else "pass a contiguous clone, or what torch.empty returns",
        )
    if like is not None:
        _check_device(asked, name, tensor, like)


def check_values(
    asked: str, name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], like: torch.Tensor
) -> None:
    """``tensor`` must be contiguous, of one of the dtypes, of that shape, on the device of ``like``."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = {name: getattr(tensor, "dtype", type(tensor).__name__)}
        raise InputTypeError(asked, f"{name} must be a tensor of {wanted}", given, f"convert it to {wanted}")
    if tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise InputError(
            asked, f"{name} must be contiguous, {list(shape)}", {"shape": list(tensor.shape), "strides": list(tensor.stride())},
            "pass a contiguous tensor of that shape",
        )
    _check_device(asked, name, tensor, like)


def _check_device(asked: str, name: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    if tensor.device != like.device:
        raise InputError(
            asked, f"{name} must lie on the device of x", {name: tensor.device, "x": like.device}, f"move {name} there",
        )
