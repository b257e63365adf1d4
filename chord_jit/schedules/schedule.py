"""The choice: how a kernel tiles a problem. The request is a family's ``Problem``; both are frozen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Schedule:
    """Tile and pipeline of one kernel.

    ``bm``: token rows of a tile. ``bn``: output features of a tile. ``bk``: K extent of one ring stage. ``stages``:
    depth of the ring. ``cm``, ``cn``: cluster along tokens and outputs (multicast). ``split``: CTAs that share K of one
    tile: of any tile, as a cluster (w4a16_mma); of the last waves' tiles (w4a16_wgmma). ``ctas``: resident CTAs per SM.
    """

    kernel: str
    bm: int
    bn: int
    bk: int
    stages: int
    cm: int = 1
    cn: int = 1
    split: int = 1
    ctas: int = 1

    def __str__(self) -> str:
        parts = [f"{self.kernel} {self.bm}x{self.bn}x{self.bk} s{self.stages}"]
        extras = (("cm", self.cm), ("cn", self.cn), ("split", self.split), ("ctas", self.ctas))
        parts += [f"{name}{value}" for name, value in extras if value > 1]
        return " ".join(parts)
