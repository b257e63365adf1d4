"""A whole layer whose first call of all is one that torch captures by itself, in a process of its own: nothing of ours that lasts may
lie in the pool of torch's graphs, which checks that whatever is allocated there is its own.
"""

from __future__ import annotations

import torch

import chord_jit
from chord_jit import counters
from tests.unit.layers.random_layer import random_layer

#: 2400 ids: grouped by two launches, with the counts of the first kept for the second.
TOKENS, TOP_K, EXPERTS, HIDDEN, NEURONS = 300, 8, 12, 512, 256


def main(where: torch.device) -> None:
    torch.manual_seed(11)
    layer = chord_jit.MoELayer(random_layer(EXPERTS, HIDDEN, NEURONS, device=str(where)), top_k=TOP_K)
    for buffer in layer.buffers():
        torch._dynamo.mark_static_address(buffer)
    function = torch.compile(lambda *given: layer(*given) * 2, fullgraph=True, mode="reduce-overhead")
    assert not counters().loads
    for _ in range(5):
        x, ids = torch.randn(TOKENS, HIDDEN, device=where).bfloat16(), torch.randint(-1, EXPERTS, (TOKENS, TOP_K), device=where)
        given = x, ids, torch.rand(TOKENS, TOP_K, device=where)
        torch.compiler.cudagraph_mark_step_begin()
        found = function(*given).clone()
        assert torch.equal(found, layer(*given) * 2)
    print("fine")


if __name__ == "__main__":
    main(torch.device("cuda", 0))
