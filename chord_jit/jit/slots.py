"""Device memory that one launch uses at a time: a ticket counter, arrival counters, and room for partial sums.

A launch takes its tickets from its slot; every counter wraps to zero at its last use, so a slot is zero whenever no
launch uses it. A kernel that dies takes its context along (CUDA errors are sticky), so no later launch meets a slot
left half-counted; a launch that the driver refuses never touches its slot.

Two launches that may overlap must not share a slot, hence the owners:

- eager: one slot per (device, stream). Launches of one stream run one after the other. None of our launches carries the
  programmatic-dependent-launch attribute and no kernel triggers its dependents early, so this holds for every
  neighbour on the stream.
- captured: one slot per captured launch site, never reused; its room for partial sums comes from the graph's own pool.
  Replays of one executable graph are serialised by CUDA; instantiating one captured graph twice and replaying both at
  once is not supported.

Not guaranteed: a stream that is destroyed while its work is still running, whose handle a new stream then inherits.
"""

from __future__ import annotations

import threading

import torch

from chord_jit import device as devices
from chord_jit import knobs
from chord_jit.errors import CaptureError

#: Most CTAs per SM of a persistent grid: a slot holds one arrival counter for each CTA.
MAX_CTAS = 2
_WORD = 4
_lock = threading.Lock()
_pools: dict[int, "_Pool"] = {}


class _Pool:
    """Counters of one device, and the eager slots by stream: the counters' address and the workspace."""

    def __init__(self, device: int):
        self.device = torch.device("cuda", device)
        self.capacity = int(knobs.read("CHORD_CAPTURE_SLOTS"))
        self.stride = -(-(1 + MAX_CTAS * devices.facts(device).sms) * _WORD // 16) * 16
        self.counters = torch.zeros(self.capacity * self.stride, dtype=torch.uint8, device=self.device)
        torch.cuda.current_stream(device).synchronize()
        self.base = self.counters.data_ptr()
        self.taken = 0
        self.of_stream: dict[int, tuple[int, torch.Tensor]] = {}

    def take(self) -> int:
        with _lock:
            if self.taken == self.capacity:
                raise CaptureError(
                    "take a slot for a launch", "every captured launch site holds a slot of its own",
                    {"CHORD_CAPTURE_SLOTS": self.capacity}, "raise CHORD_CAPTURE_SLOTS before the first call",
                )
            self.taken += 1
            return self.base + (self.taken - 1) * self.stride

    def workspace(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def prepare(device: int) -> None:
    """Allocate the counters of ``device``. Synchronises once. Raises ``CaptureError`` under capture."""
    if device in _pools:
        return
    if torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            "prepare a device for launches", "the first call on a device must not be captured", {"device": device},
            "call warm_up(...) for these problems before the capture",
        )
    with _lock:
        if device not in _pools:
            _pools[device] = _Pool(device)


def acquire(device: int, stream: int, size: int) -> tuple[int, int]:
    """Addresses of the counters and of ``size`` bytes for partial sums, for a launch on ``stream``.

    ``stream`` is the current stream of the current device. Raises ``CaptureError`` when the slots are used up.
    ``prepare`` must have run.
    """
    pool = _pools[device]
    if torch._C._cuda_isCurrentStreamCapturing():
        return pool.take(), pool.workspace(size).data_ptr() if size else 0
    slot = pool.of_stream.get(stream)
    if slot is None or slot[1].numel() < size:
        slot = (slot[0] if slot else pool.take(), pool.workspace(size))
        pool.of_stream[stream] = slot
    return slot[0], slot[1].data_ptr()
