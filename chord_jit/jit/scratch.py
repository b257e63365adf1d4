"""Device memory that a launch needs only while it runs, from torch's allocator.

- eager: one buffer for each (device, stream), replaced by cold calls that need more; launches of one stream run one after
  the other. A replaced buffer is kept: another thread may have its address and not have launched yet.
- captured: a buffer of the graph's own pool for each launch, given back at once. The pool hands it to later allocations of
  the same stream of the same capture, which run after the launch; graphs that replay side by side share nothing.
"""

from __future__ import annotations

import torch

_buffers: dict[tuple[int, int], torch.Tensor] = {}
_replaced: list[torch.Tensor] = []


def address(device: int, stream: int, size: int) -> int:
    """Address of ``size`` bytes that a launch on ``stream``, the current stream of the current device, may use."""
    if torch._C._cuda_isCurrentStreamCapturing():
        return _allocate(device, size).data_ptr()
    kept = _buffers.get((device, stream))
    if kept is None or kept.numel() < size:
        if kept is not None:
            _replaced.append(kept)
        kept = _buffers[device, stream] = _allocate(device, size)
    return kept.data_ptr()


def _allocate(device: int, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
