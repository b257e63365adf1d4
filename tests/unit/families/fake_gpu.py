"""A GPU that is not there: tensors that say they lie on it, and a machine that writes launches down.

The bytes lie in host memory, so a launch's addresses can be compared with the tensors' own; nothing computes.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from chord_jit import device
from chord_jit.families import indexed_launch
from chord_jit.families.indexed_launch import MMA_PARAMS, RESIDENT_PARAMS, WGMMA_PARAMS
from chord_jit.formats.w4a16 import PackedW4A16, allocate
from chord_jit.jit import engine, launch, scratch, slots
from chord_jit.routing.indexed import IndexedRouting, align_blocks
from chord_jit.rows import kernels as row_kernels
from tests.unit.jit.fake_driver import FakeDriver
from tests.unit.rows.parameters import LAYOUTS

H200 = device.target("sm_90a")
_ROUTING = ("sorted_ids", "expert_ids", "padded", "id_capacity", "block_capacity", "routed_rows", "top_k", "experts", "sub_blocks")
#: Each kernel's parameters by name, in their order.
PARAMETERS = {
    "w4a16_mma": (("x", "weight", "out", "row_weights", "ticket", *_ROUTING, "routed_before", "reserved"), MMA_PARAMS),
    "w4a16_wgmma": (("x", "row_weights", "weight", "out", "ticket", "joints", "sums", *_ROUTING), WGMMA_PARAMS),
    "w4a16_resident": (("x", "row_weights", "weight", "out", "ticket", *_ROUTING), RESIDENT_PARAMS),
} | {stem: ((*pointers, *numbers), row_kernels.ALL[stem][0].params) for stem, (pointers, numbers) in LAYOUTS.items()}
STREAM = 0x5157
TICKET = 0x7000
SUMS = 0x5000_0000


class OnGpu(torch.Tensor):
    """A host tensor that says it lies on CUDA device ``index``."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    index = 0
    device = property(lambda self: torch.device("cuda", self.index))
    is_cuda = property(lambda self: True)

    def get_device(self) -> int:
        return self.index

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def on_gpu(tensor: torch.Tensor, index: int = 0) -> OnGpu:
    """The same bytes, said to lie on CUDA device ``index``."""
    moved = tensor.as_subclass(OnGpu)
    moved.index = index
    return moved


def bf16(*shape: int) -> OnGpu:
    """A tensor whose values nobody reads."""
    return on_gpu(torch.empty(*shape, dtype=torch.bfloat16))


def shifted(tensor: torch.Tensor, elements: int = 1) -> OnGpu:
    """Equal values, contiguous, ``elements`` behind a 16-byte aligned address."""
    buffer = torch.zeros(tensor.numel() + 64, dtype=tensor.dtype)
    start = -(buffer.data_ptr() // tensor.element_size()) % (16 // tensor.element_size()) + elements
    return on_gpu(buffer[start : start + tensor.numel()].view(tensor.shape).copy_(tensor.cpu()))


def strided(tensor: torch.Tensor) -> OnGpu:
    """Equal values whose rows lie apart."""
    return on_gpu(torch.cat((tensor.cpu(), tensor.cpu()), 1)[:, : tensor.shape[1]])


def weight_of(experts: int, n: int, k: int, interleaved: bool = False, index: int = 0) -> PackedW4A16:
    packed = allocate(experts, n, k, interleaved, "cpu")
    return PackedW4A16(on_gpu(packed.data, index), n, k, experts, interleaved)


def routing_of(tokens: int, top_k: int, block_m: int, experts: int, *, ranks: int = 1, index: int = 0) -> IndexedRouting:
    """A random routing over ``experts * ranks`` experts, the first ``experts`` of which are local."""
    ids = torch.rand(tokens, experts * ranks).argsort(1)[:, :top_k]
    here = torch.arange(experts * ranks, dtype=torch.int32)
    made = align_blocks(ids, block_m, experts, expert_map=torch.where(here < experts, here, -1) if ranks > 1 else None)
    buffers = (on_gpu(made.sorted_ids, index), on_gpu(made.expert_ids, index), on_gpu(made.num_tokens_padded, index))
    return IndexedRouting(*buffers, top_k, block_m, made.routed_rows, experts, made.global_experts)


class Machine:
    """``loads``: spec, device and shared memory of each kernel loaded. ``guards``: devices made current, in order.

    ``sums``: device, stream and bytes of each scratch buffer asked for.
    """

    def __init__(self):
        self.driver = FakeDriver(0)
        self.current, self.loads, self.guards, self.slots, self.sums = 0, [], [], [], []

    @property
    def calls(self) -> list[dict[str, int]]:
        """The parameters of every launch, by name."""
        found = []
        for seen in self.driver.launches:
            names, params = PARAMETERS[self.loads[seen.function - 0x1001][0].stem]
            found.append(dict(zip(names, params.unpack(seen.arguments), strict=True)))
        return found

    def load(self, spec, index, shared_bytes):
        self.loads.append((spec, index, shared_bytes))
        self.driver.sizes[0x1000 + len(self.loads)] = PARAMETERS[spec.stem][1].size
        return SimpleNamespace(handle=0x1000 + len(self.loads))

    def scratch(self, index, stream, size):
        self.sums.append((index, stream, size))
        return SUMS

    def address(self, index, stream):
        self.slots.append((index, stream, self.current))
        return TICKET

    @contextmanager
    def guard(self, index):
        before, self.current = self.current, index
        self.guards.append(index)
        yield
        self.current = before


@pytest.fixture
def machine(monkeypatch) -> Machine:
    """A machine with two H200s, device 0 being current, on which nothing was prepared yet."""
    machine = Machine()
    monkeypatch.setattr(device, "facts", lambda index: H200)
    monkeypatch.setattr(launch, "driver", machine.driver)
    monkeypatch.setattr(engine, "load", machine.load)
    monkeypatch.setattr(indexed_launch, "_bound", {})
    monkeypatch.setattr(row_kernels, "_launches", {})
    monkeypatch.setattr(slots, "prepare", lambda index: machine.slots.append((index, None, machine.current)))
    monkeypatch.setattr(slots, "address", machine.address)
    monkeypatch.setattr(scratch, "address", machine.scratch)
    monkeypatch.setattr(torch.cuda, "device", machine.guard)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: machine.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM + index, raising=False)
    return machine
