"""The builder: router output to blocks, in pure torch, on the CPU or on a GPU without a host synchronisation."""

from __future__ import annotations

import torch

from chord_jit.errors import CaptureError, InputError, InputTypeError
from chord_jit.routing.checks import INT32_MAX
from chord_jit.routing.indexed.contract import IndexedRouting, check_sizes

_ASKED = "align routed ids to blocks"


def align_blocks(
    topk_ids: torch.Tensor,
    block_m: int,
    experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    checked: bool = False,
) -> IndexedRouting:
    """``api.align_blocks`` in torch alone, on any device, without a host synchronisation unless ``checked``."""
    check_inputs(topk_ids, block_m, experts, expert_map, checked=checked)
    total, device = topk_ids.numel(), topk_ids.device
    capacity = capacity_of(total, block_m, experts)
    if total == 0:
        sorted_ids, expert_ids, padded = (torch.zeros(size, dtype=torch.int32, device=device) for size in (0, 0, 1))
    else:
        local = local_experts(topk_ids.reshape(-1), experts, expert_map)
        sorted_ids, expert_ids, padded = _fill(local, block_m, experts, capacity)
    return IndexedRouting(sorted_ids, expert_ids, padded, topk_ids.shape[1], block_m, total, experts, whole_model(experts, expert_map))


def capacity_of(total: int, block_m: int, experts: int) -> int:
    """Slots that blocks of ``total`` routed ids can need. Raises ``InputError`` where int32 cannot count them."""
    capacity = total + experts * (block_m - 1)
    if total < experts:
        capacity = min(capacity, total * block_m)
    if capacity > INT32_MAX:
        raise InputError(
            _ASKED, "the slots of all blocks must fit in int32",
            {"routed": total, "experts": experts, "block_m": block_m, "slots": capacity},
            "split the tokens over several calls, or take smaller blocks",
        )
    return capacity


def whole_model(experts: int, expert_map: torch.Tensor | None) -> int:
    """Experts of the whole model, as far as the map tells."""
    return experts if expert_map is None else max(experts, expert_map.numel())


def local_experts(ids: torch.Tensor, experts: int, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Local expert of each id; ``experts`` for an id that goes nowhere, so that those sort last."""
    if expert_map is not None:
        known = (ids >= 0) & (ids < expert_map.numel())
        ids = torch.where(known, expert_map.index_select(0, ids.clamp(0, expert_map.numel() - 1)), -1)
    return torch.where((ids >= 0) & (ids < experts), ids, experts).to(torch.int32)


def _fill(local: torch.Tensor, block_m: int, experts: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``sorted_ids``, ``expert_ids`` and ``num_tokens_padded``, gathered slot by slot: no atomics, so always the same bits."""
    total, device = local.numel(), local.device
    grouped, order = torch.sort(local, stable=True)
    bounds = torch.searchsorted(grouped, torch.arange(experts + 1, dtype=torch.int32, device=device), out_int32=True)
    first, count = bounds[:-1], bounds.diff()
    width = (count + (block_m - 1)) // block_m * block_m
    ends = torch.cumsum(width, 0, dtype=torch.int32)
    starts = ends - width

    slots = torch.arange(-(-capacity // block_m) * block_m, dtype=torch.int32, device=device).view(-1, block_m)
    # Blocks past the last expert's end would be looked up as expert ``experts``: the clamp keeps that look-up legal.
    expert_ids = torch.searchsorted(ends, slots[:, 0].contiguous(), right=True, out_int32=True).clamp_(max=experts - 1)
    to_rank, stop = torch.stack((first - starts, starts + count)).index_select(1, expert_ids).unsqueeze(2)
    ids = order.index_select(0, (slots + to_rank).clamp_(max=total - 1).view(-1)).view_as(slots)
    sorted_ids = torch.where(slots < stop, ids, total).to(torch.int32)
    return sorted_ids.view(-1)[:capacity], expert_ids, ends[-1:]


def check_inputs(
    topk_ids: torch.Tensor, block_m: int, experts: int, expert_map: torch.Tensor | None, *, checked: bool = False
) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule of ids and map that a call breaks; ``checked``: of values too."""
    if not isinstance(topk_ids, torch.Tensor) or topk_ids.dtype not in (torch.int32, torch.int64):
        raise InputTypeError(
            _ASKED, "topk_ids must be an int32 or int64 tensor", {"got": getattr(topk_ids, "dtype", type(topk_ids).__name__)},
            "pass the router's integer ids",
        )
    if topk_ids.dim() != 2 or topk_ids.shape[1] == 0:
        raise InputError(
            _ASKED, "topk_ids must be [M, top_k] with top_k of 1 or more", {"shape": list(topk_ids.shape)}, "pass topk_ids.view(M, top_k)"
        )
    check_sizes(_ASKED, block_m, experts, topk_ids.shape[1], topk_ids.numel())
    if expert_map is not None:
        check_map(_ASKED, expert_map, "topk_ids", topk_ids.device)
    if checked:
        _check_values(topk_ids, experts, expert_map)


def check_map(asked: str, expert_map: torch.Tensor, beside: str, where: torch.device) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for what is no int32 [global experts] on the device ``where``, that of ``beside``."""
    if not isinstance(expert_map, torch.Tensor) or expert_map.dtype is not torch.int32:
        raise InputTypeError(
            asked, "expert_map must be an int32 tensor", {"got": getattr(expert_map, "dtype", type(expert_map).__name__)},
            "pass int32 local ids, -1 for experts of other ranks",
        )
    if expert_map.dim() != 1 or expert_map.numel() == 0:
        raise InputError(
            asked, "expert_map must be [global experts]", {"shape": list(expert_map.shape)}, "pass one local id per global expert"
        )
    if expert_map.device != where:
        raise InputError(
            asked, f"expert_map and {beside} must lie on one device", {"expert_map": expert_map.device, beside: where},
            f"move expert_map to the device of {beside}",
        )


def _check_values(topk_ids: torch.Tensor, experts: int, expert_map: torch.Tensor | None) -> None:
    """Read the values back and refuse those out of range."""
    if topk_ids.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CaptureError(_ASKED, "a checked call synchronises, which a capturing stream cannot", {}, "check outside the capture")
    limits = [("topk_ids", topk_ids, experts if expert_map is None else expert_map.numel())]
    if expert_map is not None:
        limits.append(("expert_map", expert_map, experts))
    for name, tensor, limit in limits:
        flat = tensor.detach().cpu().reshape(-1)
        bad = ((flat < -1) | (flat >= limit)).nonzero()
        if bad.numel():
            index = int(bad[0])
            raise InputError(
                _ASKED, f"{name} must hold -1 or an expert below {limit}", {"index": index, "value": int(flat[index]), "limit": limit},
                "correct the router's ids, the expert count or the expert map",
            )
