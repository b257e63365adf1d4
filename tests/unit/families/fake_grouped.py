"""Good grouped calls on a GPU that is not there, and a family that writes down what it would launch."""

from __future__ import annotations

import pytest
import torch

from chord_jit.families.grouped import GroupedFamily
from chord_jit.schedules.schedule import Schedule
from tests.unit.families.fake_gpu import bf16, on_gpu, weight_of

EXPERTS, N, K = 6, 256, 192
ROWS, MAX_M = 768, 128
LAYOUTS = ("blocks", "offsets", "masked")
#: The arguments of a bound launch, in order.
NAMES = ("index", "x", "weight", "out", "layout", "rows", "segments", "max_m")
CHOSEN = Schedule("w4a16_wgmma", 64, 128, 64, 4)


def zeros(*shape: int, dtype: torch.dtype = torch.int32, index: int = 0):
    return on_gpu(torch.zeros(*shape, dtype=dtype), index)


def good(layout: str, index: int = 0) -> dict:
    """The arguments of a good call of ``layout``."""
    call = dict(
        x=on_gpu(bf16(ROWS, K), index), weight=weight_of(EXPERTS, N, K, index=index), swiglu=False, checked=False,
        out=on_gpu(bf16(ROWS, N), index),
    )  # fmt: skip
    if layout == "masked":
        return {**call, "masked_m": zeros(EXPERTS, index=index), "expected_m": 8}
    blocks = zeros(ROWS, index=index) if layout == "blocks" else None
    offsets = zeros(EXPERTS + 1, dtype=torch.int64, index=index) if layout == "offsets" else None
    return {**call, "m_indices": blocks, "offsets": offsets, "expected_rows": None}


def tensor_of(layout: str, call: dict) -> torch.Tensor:
    return call[{"blocks": "m_indices", "offsets": "offsets", "masked": "masked_m"}[layout]]


def ask(family: GroupedFamily, layout: str, call: dict) -> torch.Tensor:
    return (family.masked if layout == "masked" else family.contiguous)(**call)


class Written(GroupedFamily):
    """``asked``: problems whose schedule was chosen. ``prepared``: problem, schedule, device. ``launches``: by ``NAMES``."""

    def __init__(self, machine):
        super().__init__()
        self.machine, self.asked, self.prepared, self.launches = machine, [], [], []

    def schedule(self, problem):
        self.asked.append(problem)
        return CHOSEN

    def prepare(self, problem, schedule, index):
        self.prepared.append((problem, schedule, index))

        def bound(*values):
            self.launches.append({**dict(zip(NAMES, values, strict=True)), "current": self.machine.current})

        return bound


@pytest.fixture
def family(machine) -> Written:
    """A family that has made no call yet."""
    return Written(machine)
