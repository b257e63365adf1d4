"""Device memory that one launch needs only while it runs.

- eager: one buffer for each (device, stream), replaced by cold calls that need more; launches of one stream run one after
  the other. What must last from one launch to the next does not belong here: threads that share a stream take turns at any
  launch. A replaced buffer is kept: another thread may have its address and not have launched yet.
- captured: a buffer of the graph's own pool for each launch, given back at once. The pool hands it to later allocations of
  the same stream of the same capture, which run after the launch; graphs that replay side by side share nothing.
"""

from __future__ import annotations

import threading

import torch

from chord_jit.jit.lasting import outside_pools

_lock = threading.Lock()
_buffers: dict[tuple[int, int], torch.Tensor] = {}
_replaced: list[torch.Tensor] = []


def address(device: int, stream: int, size: int) -> int:
    """Address of ``size`` bytes that a launch on ``stream``, the current stream of the current device, may use."""
    if torch._C._cuda_isCurrentStreamCapturing():
        return _allocate(device, size).data_ptr()
    kept = _buffers.get((device, stream))
    if kept is None or kept.numel() < size:
        kept = _grown(device, stream, size)
    return kept.data_ptr()


def _grown(device: int, stream: int, size: int) -> torch.Tensor:
    """Of threads that share a stream one allocates, and none drops a buffer that another was told of."""
    with _lock:
        kept = _buffers.get((device, stream))
        if kept is None or kept.numel() < size:
            if kept is not None:
                _replaced.append(kept)
            kept = _buffers[device, stream] = _allocate_lasting(device, size)
        return kept


def _allocate(device: int, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def _allocate_lasting(device: int, size: int) -> torch.Tensor:
    """On the caller's stream: work that was queued there may still use what the allocator has been given back."""
    stream = torch.cuda.current_stream(device)

    def make() -> torch.Tensor:
        with torch.cuda.stream(stream):
            return _allocate(device, size)

    return outside_pools(make)
