"""The routing contract once more, as slow as it is plain: what the fast builder is compared with."""


def slow_blocks(topk_ids, block_m, experts, expert_map=None):
    """Blocks in order as (local expert, valid ids); ``topk_ids`` and ``expert_map`` are lists."""
    owned = {expert: [] for expert in range(experts)}
    routed = 0
    for row in topk_ids:
        for expert in row:
            if expert_map is not None:
                expert = expert_map[expert] if 0 <= expert < len(expert_map) else -1
            if 0 <= expert < experts:
                owned[expert].append(routed)
            routed += 1
    return [(expert, ids[i : i + block_m]) for expert, ids in owned.items() for i in range(0, len(ids), block_m)]


def flatten(blocks, block_m, sentinel):
    """The used part of ``sorted_ids`` and of ``expert_ids`` for ``blocks``."""
    slots = [slot for _, ids in blocks for slot in ids + [sentinel] * (block_m - len(ids))]
    return slots, [expert for expert, _ in blocks]
