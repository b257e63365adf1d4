"""What the loaders are asked for: where the weights are to lie, and numbers of layers or experts."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import torch

from chord_jit.device import present
from chord_jit.errors import InputError, InputTypeError, UnsupportedDeviceError

_ASKED, _REMEDY = "choose where the weights lie", 'pass device="cpu", or run where the GPU is'


def device_of(device: torch.device | str | None) -> torch.device:
    """The device that is meant; None: the current GPU. Raises ``InputError`` for what names none, ``UnsupportedDeviceError`` for a
    GPU that is not there.
    """
    try:
        found = torch.device("cuda" if device is None else device)
    except (RuntimeError, TypeError):
        raise InputError(_ASKED, "it must name a device of torch", {"device": repr(device)}, 'pass "cuda", "cuda:0" or "cpu"') from None
    if found.type != "cuda":
        return found
    if not present():
        raise UnsupportedDeviceError(_ASKED, "a CUDA device must be present", {"device": found}, _REMEDY)
    if found.index is not None and found.index >= torch.cuda.device_count():
        raise UnsupportedDeviceError(_ASKED, "the GPU must be present", {"device": found, "GPUs": torch.cuda.device_count()}, _REMEDY)
    return torch.device("cuda", torch.cuda.current_device()) if device is None else found


def numbers(asked: str, name: str, given: Iterable[int]) -> list[int]:
    """``given`` as a list of int. Raises ``InputTypeError`` unless it is an iterable of integers, Python's or numpy's."""
    found = list(given) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or any(isinstance(one, bool) or not isinstance(one, Integral) for one in found):
        raise InputTypeError(asked, f"{name} must be integers, in a list or range", {name: repr(given)[:80]}, f"pass {name}=[1, 2]")
    return [int(one) for one in found]
