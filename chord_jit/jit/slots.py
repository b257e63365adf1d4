"""Counters for kernels that hand out tiles dynamically: 192 bytes of device memory for one launch at a time.

A launch takes its tickets from its slot and the counter wraps to zero at the last one; the bits of a cut tile are wiped by
the CTA that joins it. So a slot is zero whenever no launch uses it. A kernel that dies takes its context along (CUDA errors
are sticky), so no later launch meets a slot left half-counted; a launch that the driver refuses never touches its slot.

Two launches that may overlap must not share a slot, hence the owners:

- eager: one slot per (device, stream). Launches of one stream run one after the other; one that starts early (programmatic
  dependent launch) takes its first ticket after ``wait_for_previous``, when the launches before it have ended.
- captured: one slot per captured launch site, never reused. Replays of one executable graph are serialised by CUDA;
  instantiating one captured graph twice and replaying both at once is not supported.

Not guaranteed: a stream that is destroyed while its work is still running, whose handle a new stream then inherits.
"""

from __future__ import annotations

import threading

import torch

from chord_jit import knobs
from chord_jit.errors import CaptureError
from chord_jit.jit.lasting import outside_pools

#: A slot: its ticket counter, and from ``JOINTS_AT`` on two bits for each cut of a launch
#: and each of up to four warpgroups (``wgmma.MAX_CUT_CTAS`` cuts).
_STRIDE, JOINTS_AT = 192, 16
_lock = threading.Lock()
_pools: dict[int, _Pool] = {}


class _Pool:
    def __init__(self, device: int):
        self.capacity = int(knobs.read("CHORD_CAPTURE_SLOTS"))
        self.counters = torch.zeros(self.capacity * _STRIDE, dtype=torch.uint8, device=torch.device("cuda", device))
        torch.cuda.current_stream(device).synchronize()
        self.base = self.counters.data_ptr()
        self.taken = 0
        self.of_stream: dict[int, int] = {}

    def take(self) -> int:
        with _lock:
            if self.taken == self.capacity:
                raise CaptureError(
                    "take a ticket slot for a launch", "every captured launch site holds a slot of its own",
                    {"CHORD_CAPTURE_SLOTS": self.capacity}, "raise CHORD_CAPTURE_SLOTS before the first call",
                )
            self.taken += 1
            return self.base + (self.taken - 1) * _STRIDE


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
            _pools[device] = outside_pools(lambda: _Pool(device))


def address(device: int, stream: int) -> int:
    """Address of the slot that a launch on ``stream`` (the current stream of the current device) may use.

    Raises ``CaptureError`` when the pool is used up. ``prepare`` must have run.
    """
    pool = _pools[device]
    if torch._C._cuda_isCurrentStreamCapturing():
        return pool.take()
    slot = pool.of_stream.get(stream)
    if slot is None:
        slot = pool.of_stream[stream] = pool.take()
    return slot
