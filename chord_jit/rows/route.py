"""Routed ids grouped by expert on the GPU: in blocks (the indexed layout) or as rows that lie together (the grouped one).

One kernel that counts (``docs/kernels/route_rows.md``): one CTA for few ids, else two launches. No host synchronisation, and no
atomics, so the same ids give the same positions every time. Ids on the CPU are grouped by torch.
"""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.routing.indexed import IndexedRouting, align_blocks
from chord_jit.routing.indexed.align import capacity_of, check_inputs, local_experts, whole_model
from chord_jit.rows import kernels

#: Up to here one CTA is faster than two launches over many.
_WHOLE_IDS = 2048
_WHOLE, _COUNT, _PLACE = range(3)
_ASKED = "group routed ids by expert"


def blocks(
    topk_ids: torch.Tensor, block_m: int, experts: int, *, expert_map: torch.Tensor | None = None, checked: bool = False
) -> tuple[IndexedRouting, torch.Tensor]:
    """The routing that ``align_blocks`` makes of the same arguments, and the row of each id's result.

    Rows: int32 [M, top_k], of id i row i, or -1 where the id goes nowhere. Raises as ``align_blocks``, and ``InputError`` for more
    than 2048 local experts or 8388480 ids on a GPU.
    """
    check_inputs(topk_ids, block_m, experts, expert_map, checked=checked)
    if not topk_ids.is_cuda:
        routing = align_blocks(topk_ids, block_m, experts, expert_map=expert_map)
        local = local_experts(topk_ids.reshape(-1), experts, expert_map)
        own = torch.arange(local.numel(), dtype=torch.int32, device=topk_ids.device)
        return routing, torch.where(local < experts, own, -1).view(topk_ids.shape)
    total, top_k = topk_ids.numel(), topk_ids.shape[1]
    capacity = capacity_of(total, block_m, experts)
    sizes = (capacity, -(-capacity // block_m), total, 1)
    sorted_ids, expert_ids, rows, padded = _carve(sizes, topk_ids.device)
    if total:
        _launch(topk_ids, experts, expert_map, rows, block_m, capacity, (sorted_ids, expert_ids, padded), None)
    else:
        padded.zero_()
    whole = whole_model(experts, expert_map)
    return IndexedRouting.trusted(sorted_ids, expert_ids, padded, top_k, block_m, total, experts, whole), rows.view(topk_ids.shape)


def groups(
    topk_ids: torch.Tensor, experts: int, *, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefix offsets of rows that lie together by expert, and the row of each id: what ``contiguous(offsets=)`` takes.

    Offsets: int64 [experts + 1]. Rows: int32 [M, top_k], -1 where the id goes nowhere; ids of one expert ascend. Raises as
    ``blocks``.
    """
    check_inputs(topk_ids, 8, experts, expert_map)
    if not topk_ids.is_cuda:
        return _host_groups(topk_ids, experts, expert_map)
    offsets = torch.empty(experts + 1, dtype=torch.int64, device=topk_ids.device)
    rows = torch.empty(topk_ids.shape, dtype=torch.int32, device=topk_ids.device)
    if topk_ids.numel():
        _launch(topk_ids, experts, expert_map, rows, 1, topk_ids.numel(), None, offsets)
    else:
        offsets.zero_()
    return offsets, rows


def _host_groups(topk_ids: torch.Tensor, experts: int, expert_map: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    local = local_experts(topk_ids.reshape(-1), experts, expert_map)
    grouped, order = torch.sort(local, stable=True)
    offsets = torch.searchsorted(grouped, torch.arange(experts + 1, dtype=torch.int32, device=local.device))
    rows = torch.empty_like(local)
    rows[order] = torch.arange(local.numel(), dtype=torch.int32, device=local.device)
    return offsets, torch.where(local < experts, rows, -1).view(topk_ids.shape)


def _carve(sizes: tuple[int, ...], where: torch.device) -> tuple[torch.Tensor, ...]:
    """int32 buffers of ``sizes`` in one allocation, each at a multiple of 16 bytes."""
    padded = [-(-size // 4) * 4 for size in sizes]
    whole = torch.empty(sum(padded), dtype=torch.int32, device=where)
    starts = [sum(padded[:place]) for place in range(len(sizes))]
    return tuple(whole[start : start + size] for start, size in zip(starts, sizes, strict=True))


def _launch(
    topk_ids: torch.Tensor, experts: int, expert_map: torch.Tensor | None, rows: torch.Tensor, block_m: int, capacity: int,
    block_buffers: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None, offsets: torch.Tensor | None,
) -> None:
    total, index = topk_ids.numel(), topk_ids.get_device()
    if experts > kernels.MAX_EXPERTS or total > kernels.MAX_IDS:
        raise InputError(
            _ASKED, f"at most {kernels.MAX_EXPERTS} local experts and {kernels.MAX_IDS} ids are counted at once",
            {"experts": experts, "ids": total}, "split the tokens over several calls, or the experts over ranks",
        )
    # The kernel knows no strides. Copies may go when this returns: torch gives their memory to later work of the stream alone.
    ids, expert_map = topk_ids.contiguous(), None if expert_map is None else expert_map.contiguous()
    values = tuple(map(kernels.address, (ids, expert_map, *(block_buffers or (None,) * 3), offsets, rows)))
    sizes = (total, experts, 0 if expert_map is None else expert_map.numel(), block_m, capacity, ids.dtype is torch.int64)
    if total <= _WHOLE_IDS:
        kernels.enqueue(kernels.ROUTE_WHOLE, index, *values, 0, *sizes, _WHOLE, 0)
        return
    # Of this call alone, and held until both launches are queued: threads that share a stream may take turns between the two.
    chunks = ids.new_empty(experts * kernels.CHUNKS, dtype=torch.int32)
    for phase in (_COUNT, _PLACE):
        kernels.enqueue(kernels.ROUTE_CHUNKS, index, *values, chunks.data_ptr(), *sizes, phase, 0)
