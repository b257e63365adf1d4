"""Where a layer's weights lie, and whether we have kernels for that place."""

from __future__ import annotations

import torch

from chord_jit import device, knobs
from chord_jit.device import DeviceFacts
from chord_jit.errors import UnsupportedDeviceError


def index_of(where: torch.device | str | int | None) -> int:
    """CUDA device index, -1 for the CPU; None, or "cuda" alone, is the current device."""
    found = torch.device("cuda" if torch.cuda.is_available() else "cpu") if where is None else torch.device(where)
    if found.type != "cuda":
        return -1
    return torch.cuda.current_device() if found.index is None else found.index


def objection(where: torch.device | str | int | None) -> str | None:
    """Why weights there cannot be served; None where they can."""
    try:
        facts_of(index_of(where))
    except UnsupportedDeviceError as error:
        values = ", ".join(f"{name} {value}" for name, value in error.values.items())
        return f"{error.rule} ({values})"
    return None


def facts_of(index: int) -> DeviceFacts:
    """Facts of a CUDA device; of an H200 for the CPU with ``CHORD_BACKEND=reference``. Raises ``UnsupportedDeviceError``."""
    if index < 0 and knobs.read("CHORD_BACKEND") == "reference":
        return device.target("sm_90a")
    return device.facts(index)
