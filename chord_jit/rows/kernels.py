"""The kernels of this room: what they are compiled as, and their launches. No row, expert or SM count is compiled in."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from chord_jit import device, knobs
from chord_jit.jit import engine
from chord_jit.jit.launch import Launch
from chord_jit.jit.spec import KernelSpec

#: Most experts of one rank that ids can be grouped for, and chunks that many ids are cut into.
MAX_EXPERTS, CHUNKS = 2048, 128
#: Most ids at once: counts of a chunk fit in 16 bits.
MAX_IDS = CHUNKS * 65535
_ROUTE_THREADS = 1024
_ROUTE_SHARED = 4 * 32 + 4 + MAX_EXPERTS * (12 + 2 * 32)


@dataclass(frozen=True, eq=False)
class RowKernel:
    """One of the constants below, known by itself.

    ``config``: of the template; ``params``: layout of its parameter struct; ``ctas``: of its grid, 0 for ``per_sm`` an SM.
    ``early``: it may start before the launch before it has ended (``Launch.early``).
    """

    stem: str
    config: tuple[tuple[str, int], ...]
    params: struct.Struct
    ctas: int = 0
    per_sm: int = 0
    early: bool = False

    def spec(self, arch: str) -> KernelSpec:
        """What is compiled for ``arch``; launches of any grid share it."""
        return KernelSpec(self.stem, self.config, arch)


_ROUTE = (("kThreads", _ROUTE_THREADS), ("kExperts", MAX_EXPERTS), ("kChunks", CHUNKS), ("kSharedBytes", _ROUTE_SHARED))
_ROUTE_PARAMS = struct.Struct("<8Q8i")
_PLAIN = (("kThreads", 128), ("kSharedBytes", 0))
ROUTE_WHOLE = RowKernel("route_rows", _ROUTE, _ROUTE_PARAMS, ctas=1)
ROUTE_CHUNKS = RowKernel("route_rows", _ROUTE, _ROUTE_PARAMS, ctas=CHUNKS)
MOVE = RowKernel("move_rows", _PLAIN, struct.Struct("<5Q2q4i"), per_sm=16)
COMBINE = RowKernel("combine_rows", _PLAIN, struct.Struct("<5Qq2i"), per_sm=16, early=True)
#: By stem.
ALL = {"route_rows": (ROUTE_WHOLE, ROUTE_CHUNKS), "move_rows": (MOVE,), "combine_rows": (COMBINE,)}

_launches: dict[tuple[RowKernel, int], tuple[int, Launch]] = {}


def launch(kernel: RowKernel, index: int) -> Launch:
    """The loaded kernel on CUDA device ``index``, the current one; memoised until a knob changes. Raises what ``engine.load`` raises."""
    return knobs.until_changed(_launches, (kernel, index), _load, kernel, index)


def _load(kernel: RowKernel, index: int) -> Launch:
    facts, config = device.facts(index), dict(kernel.config)
    loaded = engine.load(kernel.spec(facts.arch), index, config["kSharedBytes"])
    grid = (kernel.ctas or kernel.per_sm * facts.sms, 1, 1)
    found = Launch(loaded.handle, grid, config["kThreads"], 1, config["kSharedBytes"], kernel.params)
    return found.early() if kernel.early else found


def address(tensor: torch.Tensor | None) -> int:
    """What a kernel is told of an argument: a null pointer for one that was left out."""
    return 0 if tensor is None else tensor.data_ptr()


def enqueue(kernel: RowKernel, index: int, *values: int) -> None:
    """One launch on the current stream of device ``index``."""
    if torch._C._cuda_getDevice() == index:
        launch(kernel, index)(torch._C._cuda_getCurrentRawStream(index), *values)
        return
    with torch.cuda.device(index):
        launch(kernel, index)(torch._C._cuda_getCurrentRawStream(index), *values)
