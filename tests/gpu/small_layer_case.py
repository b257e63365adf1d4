"""Small calls of a whole MoE layer in a process of their own, for compute-sanitizer.

Both ways, hostile routings, slices, an addend. Drawn and checked on the CPU, as ``small_case`` does.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from chord_jit.rows import pipeline
from tests.gpu.tensors import held_on
from tests.unit.layers import hostile

ROUTINGS = ("dropped", "an expert twice", "all on one expert", "out of range", "a map", "a map of none")


def main(where: torch.device) -> None:
    torch.manual_seed(7)
    for way in hostile.WAYS:
        for tokens in hostile.TOKENS:
            for name, ids in zip(ROUTINGS, (torch.int64, torch.int32) * 3, strict=True):
                print(way, tokens, name, ids, flush=True)
                drawn = hostile.ROUTINGS[name](hostile.draw(tokens, "cpu", ids=ids))
                call, addend = held_on(where, drawn), torch.randn(tokens, hostile.HIDDEN).bfloat16()
                result = pipeline.run(
                    call.x, call.weights, call.ids, call.factors, hostile.TOP_K, expert_map=call.expert_map, addend=addend.to(where),
                    way=way, workspace_bytes=50 * 2 * hostile.TOP_K * (hostile.HIDDEN + hostile.NEURONS),
                )
                hostile.assert_right(result.cpu(), replace(drawn, shared=lambda _, addend=addend: addend).exact())


if __name__ == "__main__":
    main(torch.device("cuda", 0))
