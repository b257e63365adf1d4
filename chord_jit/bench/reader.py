"""The read-only kernels that our kernels' shares are quoted against: the same bytes, consumed, nothing computed.

No single form is the fastest at every size, so the reader of a case is the best of ``FORMS``. The forms differ in who
reads what and how; all read exactly the packed bytes of the active experts, from the weight that our kernel reads.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from chord_jit import device
from chord_jit.bench.timing import FLUSH_BYTES
from chord_jit.errors import ChordInternalError, InputError
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.jit import engine
from chord_jit.jit.launch import Launch
from chord_jit.jit.spec import KernelSpec

_MAX_ACTIVE = 512
#: ``chord::read_floor::Params``.
_PARAMS = struct.Struct(f"<4Q4I{2 * _MAX_ACTIVE}s")
_ORDERS = {"strided": 0, "contiguous": 1, "dynamic": 2}
_WARP = 32
_BARRIER_BYTES = 8
_FILLED_BYTES = 4


@dataclass(frozen=True)
class ReaderForm:
    """One way to read.

    ``order``: which runs a CTA reads (strided, contiguous, dynamic). ``chunk``: bytes of one bulk copy, 0 for plain
    16-byte loads. ``stages``: chunks of the ring. ``ctas``: CTAs per SM. ``warps``: consuming warps of a CTA.
    ``panels``: a run is one 128-row panel, as a tile of our kernel; otherwise it is one chunk. ``evict_first``: the
    L2 hint of the bulk copies. ``unroll``: loads in flight per thread.
    """

    name: str
    order: str
    chunk: int
    stages: int
    ctas: int
    warps: int = 8
    panels: bool = False
    evict_first: bool = True
    unroll: int = 4

    @property
    def bulk(self) -> bool:
        return self.chunk > 0

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consuming warps, and one producer warp where copies are bulk."""
        return (self.warps + self.bulk) * _WARP

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.chunk + 2 * _BARRIER_BYTES + _FILLED_BYTES) if self.bulk else 0

    def run_bytes(self, panel_bytes: int) -> int:
        """Bytes that a CTA takes at a time."""
        if not self.bulk:
            return self.warps * _WARP * self.unroll * 16
        return panel_bytes if self.panels else self.chunk

    def spec(self, arch: str) -> KernelSpec:
        """The kernel of this form for one target."""
        config = (
            ("kBulk", self.bulk),
            ("kOrder", _ORDERS[self.order]),
            ("kChunkBytes", self.chunk),
            ("kStages", self.stages),
            ("kConsumers", self.warps),
            ("kThreads", self.threads),
            ("kUnroll", self.unroll),
            ("kEvictFirst", self.evict_first),
        )
        return KernelSpec("read_floor", config, arch)


_LOADS = ReaderForm("loads 4 x 16 B, 64 CTAs", "strided", 0, 1, 64)

#: The fixed set. 36 KB panels are the tile kernel's own order: eight k blocks a copy, panels taken by ticket.
FORMS = (
    ReaderForm("bulk 32 KB x 6, contiguous", "contiguous", 32 << 10, 6, 1),
    ReaderForm("bulk 32 KB x 6, strided", "strided", 32 << 10, 6, 1),
    ReaderForm("bulk 32 KB x 6, strided, no hint", "strided", 32 << 10, 6, 1, evict_first=False),
    ReaderForm("bulk 36 KB x 6, panels", "dynamic", 36 << 10, 6, 1, panels=True),
    ReaderForm("bulk 16 KB x 6, strided, 2 CTAs", "strided", 16 << 10, 6, 2),
    _LOADS,
    ReaderForm("loads 4 x 16 B, 4 CTAs of 16 warps", "strided", 0, 1, 4, warps=16),
)


class Reader:
    """One form bound to memory; calling it enqueues one read on the current stream.

    ``memory``: uint8 [experts * expert_bytes] on a CUDA device, 16-byte aligned. ``expert_bytes``: size of an expert,
    ``panel_bytes``: of one panel in it, multiples of 16. ``active``: the experts to read, at most 512.
    """

    def __init__(self, form: ReaderForm, memory: torch.Tensor, expert_bytes: int, panel_bytes: int, active: Sequence[int]):
        if not 0 < len(active) <= _MAX_ACTIVE:
            raise InputError(
                "bind a read-only kernel", "the experts travel in the kernel's arguments", {"active": len(active), "most": _MAX_ACTIVE},
                "read fewer experts",
            )
        index = memory.device.index
        facts = device.facts(index)
        run_bytes = form.run_bytes(panel_bytes)
        runs_per_expert = -(-expert_bytes // run_bytes)
        runs = runs_per_expert * len(active)
        grid = min(runs, form.ctas * facts.sms)
        kernel = engine.load(form.spec(facts.arch), index, form.shared_bytes)
        self._launch = Launch(kernel.handle, (grid, 1, 1), form.threads, 1, form.shared_bytes, _PARAMS)
        self._sums = torch.zeros(grid * form.warps, dtype=torch.int32, device=memory.device)
        self._ticket = torch.zeros(1, dtype=torch.int32, device=memory.device)
        self._memory, self._expert_bytes, self._active = memory, expert_bytes, list(active)
        experts = np.asarray(self._active, dtype=np.uint16).tobytes()
        self._values = (
            memory.data_ptr(), self._sums.data_ptr(), self._ticket.data_ptr(), expert_bytes, run_bytes, runs_per_expert, runs, 0, experts,
        )
        self.bytes = expert_bytes * len(active)

    @classmethod
    def of_weight(cls, form: ReaderForm, packed: PackedW4A16, active: Sequence[int]) -> Reader:
        """Reads the named experts of a packed weight."""
        expert_bytes = packed.data[0].numel()
        return cls(form, packed.data.view(-1), expert_bytes, expert_bytes // packed.data.shape[1], active)

    def __call__(self) -> None:
        self._launch(torch.cuda.current_stream(self._memory.device).cuda_stream, *self._values)

    def check(self) -> None:
        """Read once and compare the sum of all 32-bit words with torch's. Raises ``ChordInternalError`` on a difference."""
        self._sums.zero_()
        self()
        seen = int(self._sums.sum(dtype=torch.int64)) % (1 << 32)
        experts = self._memory.view(torch.int32).view(-1, self._expert_bytes // 4)
        wanted = sum(int(experts[expert].sum(dtype=torch.int64)) for expert in self._active) % (1 << 32)
        if seen != wanted:
            raise ChordInternalError(
                "check a read-only kernel", "it must have read every byte once", {"sum": seen, "wanted": wanted}, "do not use this run",
            )


def read_flush(place: torch.device) -> Reader:
    """Evicts L2 by reading 256 MB: L2 is cold and clean, and no write-back falls into the next kernel's time."""
    memory = torch.ones(FLUSH_BYTES, dtype=torch.uint8, device=place)
    return Reader(_LOADS, memory, FLUSH_BYTES, FLUSH_BYTES, (0,))
