"""The shapes, routings and modes that every value test runs over."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch


@dataclass(frozen=True)
class Case:
    """One call. ``draw`` names a router of ``routers.py``; ``ids``: dtype of the router's output."""

    experts: int
    n: int
    k: int
    tokens: int
    top_k: int
    block_m: int
    draw: str = "random"
    interleaved: bool = False
    swiglu: bool = False
    weighted: bool = False
    ids: torch.dtype = torch.int32

    def __str__(self) -> str:
        modes = [name for name in ("swiglu", "weighted") if getattr(self, name)]
        if self.interleaved and not self.swiglu:
            modes.append("interleaved")
        if self.ids is torch.int64:
            modes.append("int64")
        return "-".join([f"E{self.experts}", f"{self.n}x{self.k}", f"M{self.tokens}x{self.top_k}", f"b{self.block_m}", self.draw, *modes])


PAIRS = dict(interleaved=True, swiglu=True)
LONG = dict(ids=torch.int64)

#: What a broken kernel fails first: both projections of Kimi K2 at EP8, SwiGLU, padding on both axes, -1 ids, TP8.
QUICK = [
    Case(8, 128, 64, 4, 2, 8),
    Case(48, 4096, 7168, 20, 8, 8),
    Case(48, 4096, 7168, 20, 8, 8, **PAIRS),
    Case(48, 7168, 2048, 160, 1, 8, weighted=True),
    Case(8, 72, 96, 9, 2, 8, "dropped"),
    Case(8, 72, 96, 9, 2, 16, "dropped", **PAIRS),
    Case(8, 768, 1344, 17, 3, 16, "hot", interleaved=True),
    Case(384, 512, 7168, 20, 8, 8, "ep", **LONG),
]

#: Every N, every K, every expert count, every router and every block size, in no order that a kernel could know.
MORE = [
    Case(1, 8, 32, 1, 1, 8),
    Case(1, 8, 32, 33, 1, 32, **PAIRS),
    Case(1, 768, 1344, 33, 1, 64),
    Case(1, 4096, 256, 16, 1, 16, **PAIRS),
    Case(8, 8, 7168, 5, 2, 8, "balanced"),
    Case(8, 72, 32, 64, 2, 64, "random", **LONG),
    Case(8, 72, 192, 40, 8, 16, "balanced", interleaved=True),
    Case(8, 128, 96, 31, 2, 8, "hot", weighted=True),
    Case(8, 128, 7168, 6, 2, 16, "sparse"),
    Case(8, 384, 64, 50, 4, 32, "dropped", weighted=True, **LONG),
    Case(8, 384, 192, 12, 2, 8, "ep", **PAIRS),
    Case(8, 512, 2048, 24, 2, 16, "ep", weighted=True),
    Case(8, 768, 256, 200, 2, 64, "random"),
    Case(8, 1536, 32, 3, 8, 8, "random", **PAIRS),
    Case(8, 1536, 2048, 32, 8, 32, "balanced", **PAIRS),
    Case(8, 4096, 1344, 2, 2, 8, "sparse", interleaved=True),
    Case(8, 7168, 192, 10, 1, 16, "hot", weighted=True),
    Case(48, 128, 192, 160, 1, 8, "sparse", weighted=True, **LONG),
    Case(48, 384, 1344, 7, 8, 8, "hot", **PAIRS),
    Case(48, 1536, 96, 20, 8, 16, "dropped", **LONG),
    Case(48, 4096, 7168, 50, 8, 16, "hot", **PAIRS),
    Case(48, 4096, 7168, 1, 8, 8, interleaved=True),
    Case(48, 7168, 2048, 400, 1, 16, "dropped", weighted=True),
    Case(384, 512, 7168, 3, 8, 8, "random", **PAIRS),
    Case(384, 7168, 256, 160, 1, 8, "random", weighted=True),
    Case(384, 72, 64, 96, 8, 8, "sparse"),
    Case(1025, 128, 64, 33, 8, 8, "random", **PAIRS),
    Case(1025, 8, 256, 257, 4, 8, "ep", weighted=True, **LONG),
    Case(1025, 384, 32, 2000, 1, 16, "balanced"),
]

CASES = [pytest.param(case, id=str(case), marks=pytest.mark.quick) for case in QUICK] + [pytest.param(case, id=str(case)) for case in MORE]
