"""Stand-ins in torch for what vLLM compiles: the operators of its MoE layer. They keep the contracts that its docstrings state,
tails without a value included, and wait for no device, so that CUDA graphs can hold them.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

#: What uninitialised memory may hold: no id, no expert.
GARBAGE = 0x7AAAAAAA


def _local(topk_ids: torch.Tensor, expert_map: torch.Tensor | None, bins: int) -> torch.Tensor:
    """Local expert of each id, ``bins`` for one that goes nowhere."""
    ids = topk_ids.reshape(-1).long()
    if expert_map is not None:
        ids = torch.where(ids >= 0, expert_map.long()[ids.clamp(min=0)], -1)
    return torch.where(ids >= 0, ids, bins)


def _starts(local: torch.Tensor, bins: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Order of the ids by expert, place of each in that order with experts padded to blocks, and the padded ends."""
    counts = torch.zeros(bins + 1, dtype=torch.long, device=local.device).scatter_add_(0, local, torch.ones_like(local))
    widths = (counts + block - 1) // block * block
    grouped, order = torch.sort(local, stable=True)
    first = counts.cumsum(0) - counts
    places = (widths.cumsum(0) - widths)[grouped] + torch.arange(local.numel(), device=local.device) - first[grouped]
    return order, places, widths.cumsum(0)[:bins]


def moe_align_block_size(
    topk_ids: torch.Tensor, block_size: int, num_experts: int, expert_map: torch.Tensor | None = None, pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False, return_scatter_idx: bool = False,
) -> tuple[torch.Tensor, ...]:
    assert ignore_invalid_experts and not pad_sorted_ids
    total, where = topk_ids.numel(), topk_ids.device
    capacity = total + num_experts * (block_size - 1)
    if total < num_experts:
        capacity = min(total * block_size, capacity)
    local = _local(topk_ids, expert_map, num_experts)
    order, places, ends = _starts(local, num_experts, block_size)
    padded = ends[-1:]
    slots = torch.arange(capacity + block_size, device=where)
    sorted_ids = torch.where(slots < padded, total, GARBAGE)
    # Ids without an expert are put behind the capacity.
    sorted_ids = sorted_ids.scatter(0, torch.where(local[order] < num_experts, places, capacity), order)[:capacity]
    blocks = torch.arange(-(-capacity // block_size), device=where) * block_size
    expert_ids = torch.where(blocks < padded, torch.searchsorted(ends, blocks, right=True), GARBAGE)
    result = (sorted_ids.int(), expert_ids.int(), padded.int())
    if not return_scatter_idx:
        return result
    own = torch.arange(total, device=where)
    return *result, torch.where(local < num_experts, own, -1).int().view(-1, 1)


def moe_fused_mul_sum(
    inputs: torch.Tensor, topk_weights: torch.Tensor, outputs: torch.Tensor | None = None, topk_ids: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None, num_valid_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    known = (_local(topk_ids, expert_map, -1) >= 0).view(topk_ids.shape)[..., None]
    total = torch.where(known, inputs.float() * topk_weights[..., None].float(), 0).sum(1)
    return outputs.copy_(torch.where((topk_ids >= 0).any(1, keepdim=True), total.to(outputs.dtype), outputs))


def get_moe_permute_scratch(*, num_experts: int, num_local_experts: int, device: torch.device, **sizes: object) -> SimpleNamespace:
    return SimpleNamespace(num_experts=num_experts, num_local_experts=num_local_experts, device=device)


def moe_prepare_scatter(
    topk_ids: torch.Tensor, expert_map: torch.Tensor | None, scratch: SimpleNamespace
) -> tuple[torch.Tensor, torch.Tensor]:
    experts = scratch.num_local_experts
    order, places, ends = _starts(_local(topk_ids, expert_map, experts), experts, 1)
    destinations = torch.empty_like(places).scatter(0, order, places)
    return torch.cat((torch.zeros_like(ends[:1]), ends)), destinations.int().view(topk_ids.shape)


def moe_unpermute(
    out: torch.Tensor, permuted_hidden_states: torch.Tensor, topk_weights: torch.Tensor, inv_permuted_idx: torch.Tensor,
    expert_first_token_offset: torch.Tensor | None = None,
) -> None:
    rows = permuted_hidden_states.reshape(-1, permuted_hidden_states.shape[-1])
    index = inv_permuted_idx.reshape(topk_weights.shape).long()
    known = (index < expert_first_token_offset[-1])[..., None]
    out.copy_(torch.where(known, rows[index].float() * topk_weights[..., None].float(), 0).sum(1))


def moe_permute(
    hidden_states: torch.Tensor, a1q_scale: None, topk_ids: torch.Tensor, n_expert: int, n_local_expert: int,
    expert_map: torch.Tensor | None, scratch: object,
) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, None]:
    """Before 0.31, where vLLM moves the rows itself: rows of other ranks' experts come last."""
    sizes = SimpleNamespace(num_local_experts=n_local_expert)
    offsets, destinations = moe_prepare_scatter(topk_ids, expert_map, sizes)
    rows = hidden_states.repeat_interleave(topk_ids.shape[1], 0)
    return torch.empty_like(rows).index_copy_(0, destinations.flatten().long(), rows), None, offsets, destinations.flatten(), None


def silu_and_mul(self: object, *, input: torch.Tensor, output: torch.Tensor, **options: object) -> None:
    """Before 0.31, where vLLM activates the rows itself."""
    gate, up = input.float().chunk(2, dim=1)
    output.copy_(torch.nn.functional.silu(gate) * up)


def install(experts_module: object) -> None:
    """Puts them where vLLM's experts look their operators up."""
    functions = [moe_align_block_size, moe_fused_mul_sum, moe_unpermute]
    if hasattr(experts_module, "moe_prepare_scatter"):
        functions += [get_moe_permute_scratch, moe_prepare_scatter]
    else:
        functions.append(moe_permute)
        experts_module.HummingExpertsBase.activation = silu_and_mul
        experts_module.HummingExpertsBase._get_permute_scratch = lambda self, top_k: None
    for function in functions:
        setattr(experts_module, function.__name__, function)
    experts_module.moe_permute_unpermute_supported = lambda: True
