"""Draws of a router, and routings whose unpromised memory is filled with what does most harm if it is read."""

from __future__ import annotations

from dataclasses import replace

import torch

from chord_jit import IndexedRouting, align_blocks
from tests.gpu.cases import Case

INT32 = torch.iinfo(torch.int32)
EP = 4  # ranks of the "ep" draw


def draw(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``topk_ids`` [tokens, top_k] and an expert map or None.

    random: distinct experts per token. balanced: as even as can be. hot: expert 0 is everyone's first. sparse: an
    eighth of the experts. dropped: a third of the ids and the last token's are -1. ep: a quarter of the experts is ours.
    """
    device = generator.device
    whole = case.experts * EP if case.draw == "ep" else case.experts
    scores = torch.rand(case.tokens, whole, generator=generator, device=device)
    if case.draw == "hot":
        scores[:, 0] = 2
    if case.draw == "sparse":
        scores[:, max(case.top_k, case.experts // 8) :] = -1
    topk_ids = scores.topk(min(case.top_k, whole), dim=1).indices
    if case.draw == "balanced":
        order = torch.randperm(case.tokens * case.top_k, generator=generator, device=device)
        topk_ids = (order % whole).view(case.tokens, case.top_k)
    if case.draw == "dropped":
        topk_ids[torch.rand(topk_ids.shape, generator=generator, device=device) < 1 / 3] = -1
        topk_ids[-1] = -1
    expert_map = None
    if case.draw == "ep":
        expert_map = torch.full((whole,), -1, dtype=torch.int32, device=device)
        ours = torch.randperm(whole, generator=generator, device=device)[: case.experts]
        expert_map[ours] = torch.arange(case.experts, dtype=torch.int32, device=device)
    return topk_ids.to(case.ids), expert_map


def routing_of(case: Case, generator: torch.Generator) -> IndexedRouting:
    """The draw of ``case`` in blocks, with poisoned tails."""
    topk_ids, expert_map = draw(case, generator)
    return poisoned(align_blocks(topk_ids, case.block_m, case.experts, expert_map=expert_map), generator)


def poisoned(routing: IndexedRouting, generator: torch.Generator) -> IndexedRouting:
    """The same blocks, with sentinels of every size, and tails of garbage that looks valid half of the time."""
    padded, rows = int(routing.num_tokens_padded), routing.routed_rows
    ids, experts = routing.sorted_ids.clone(), routing.expert_ids.clone()
    used = ids[:padded]
    used[used >= rows] = _noise(used[used >= rows], rows, INT32.max, generator)
    _spoil(ids[padded:], rows, generator)
    _spoil(experts[padded // routing.block_m :], routing.experts, generator)
    return replace(routing, sorted_ids=ids, expert_ids=experts)


def valid_ids(routing: IndexedRouting) -> torch.Tensor:
    """Ids that the blocks in use name, int64."""
    used = routing.sorted_ids[: int(routing.num_tokens_padded)].long()
    return used[used < routing.routed_rows]


def _spoil(tail: torch.Tensor, limit: int, generator: torch.Generator) -> None:
    tail.copy_(_noise(tail, INT32.min, INT32.max, generator))
    plausible = torch.rand(tail.shape, generator=generator, device=tail.device) < 0.5
    tail[plausible] = _noise(tail[plausible], 0, limit, generator)


def _noise(like: torch.Tensor, low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, like.shape, dtype=torch.int32, generator=generator, device=like.device)
