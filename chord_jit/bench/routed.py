"""What the inputs of every case with routed ids are: activations, ids, and the blocks that the ids make."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.bench.indexed_cases import DrawnCase
from chord_jit.routing.indexed import IndexedRouting, align_blocks

#: Block size of the routing that references are given: any gives the same rows.
REFERENCE_BLOCK = 8


@dataclass(frozen=True, eq=False)
class RoutedInputs:
    """``x``: BF16 activations. ``topk_ids``: int32 [rows of x, top_k], experts of the case's layer."""

    case: DrawnCase
    x: torch.Tensor
    topk_ids: torch.Tensor

    def routing(self, block_m: int) -> IndexedRouting:
        """The blocks of the draw at a block size."""
        return align_blocks(self.topk_ids, block_m, self.case.layer.experts)

    def empty(self, rows: int, features: int) -> torch.Tensor:
        """BF16, filled with NaN so that an unwritten element shows."""
        return torch.full((rows, features), float("nan"), dtype=torch.bfloat16, device=self.x.device)
