"""Small calls of a whole MoE layer in a process of their own, for compute-sanitizer.

Both ways, hostile routings, slices, an addend.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from chord_jit.rows import pipeline
from tests.unit.layers import hostile

ROUTINGS = ("dropped", "an expert twice", "all on one expert", "out of range", "a map", "a map of none")


def main(where: torch.device) -> None:
    torch.manual_seed(7)
    for way in hostile.WAYS:
        for tokens in hostile.TOKENS:
            for name, ids in zip(ROUTINGS, (torch.int64, torch.int32) * 3, strict=True):
                call = hostile.ROUTINGS[name](hostile.draw(tokens, where, ids=ids))
                addend = torch.randn(tokens, hostile.HIDDEN, device=where).bfloat16()
                result = pipeline.run(
                    call.x, call.weights, call.ids, call.factors, hostile.TOP_K, expert_map=call.expert_map, addend=addend, way=way,
                    workspace_bytes=50 * 2 * hostile.TOP_K * (hostile.HIDDEN + hostile.NEURONS),
                )
                hostile.assert_right(result, replace(call, shared=lambda _, addend=addend: addend).exact())


if __name__ == "__main__":
    main(torch.device("cuda", 0))
