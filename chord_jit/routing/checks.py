"""What the checks of every routing share: numbers, buffers, and the naming of a first offender."""

from __future__ import annotations

import torch

from chord_jit.errors import CaptureError, InputError, InputTypeError

INT32_MAX = 2**31 - 1


def check_int(asked: str, name: str, value: int, least: int, bits: int = 32) -> None:
    """Refuse what is no int (``InputTypeError``), is below ``least`` or does not fit in ``bits`` signed bits (``InputError``)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputTypeError(asked, f"{name} must be an int", {name: repr(value)}, "pass a Python int")
    if not least <= value < 1 << bits - 1:
        raise InputError(asked, f"{name} must be {least} or more and fit in int{bits}", {name: value}, f"give another {name}")


def check_tensor(asked: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse what is no tensor of ``dtype``: ``InputTypeError``."""
    kind = str(dtype).removeprefix("torch.")
    if not isinstance(tensor, torch.Tensor):
        raise InputTypeError(asked, f"{name} must be a tensor", {"type": type(tensor).__name__}, f"pass an {kind} tensor")
    if tensor.dtype is not dtype:
        raise InputTypeError(asked, f"{name} must be {kind}", {"dtype": tensor.dtype}, f"pass {name}.to(torch.{kind})")


def check_buffer(asked: str, name: str, tensor: torch.Tensor, dtype: torch.dtype = torch.int32) -> None:
    """Refuse what is no contiguous 1-D tensor of ``dtype``: ``InputTypeError`` or ``InputError``."""
    check_tensor(asked, name, tensor, dtype)
    if tensor.dim() != 1:
        raise InputError(asked, f"{name} must be 1-D", {"shape": list(tensor.shape)}, f"pass {name}.flatten()")
    if not tensor.is_contiguous():
        raise InputError(asked, f"{name} must be contiguous", {"stride": tensor.stride()}, f"pass {name}.contiguous()")


def refuse_capture(asked: str, tensor: torch.Tensor, values: dict[str, object]) -> None:
    """Refuse to read ``tensor`` back while the current stream is being captured: ``CaptureError``."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            asked, "checked mode synchronises, which a capturing stream cannot", values,
            "check before the capture, capture trusted calls",
        )


def refuse_first(
    asked: str, broken: torch.Tensor, rule: str, place: str, values: torch.Tensor, facts: dict[str, int], remedy: str
) -> None:
    """Refuse the first True of ``broken``, naming its place and its value of ``values``: ``InputError``."""
    offenders = broken.nonzero()
    if offenders.numel():
        first = int(offenders[0])
        raise InputError(asked, rule, {place: first, "value": int(values[first]), **facts}, remedy)
