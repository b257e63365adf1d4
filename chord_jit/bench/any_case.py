"""What a run and a report need of a case, whichever family computes it."""

from __future__ import annotations

import numpy as np

from chord_jit.bench.layers import Layer


class AnyCase:
    """One call to be timed.

    ``kind``: how its numbers are shown, the family or prefill of the indexed one. ``layout``: how its rows reach the kernel.
    ``size``: what tells the cases of a layer apart: tokens, routed rows, or rows per expert.
    ``rows``: rows that are computed, in all. ``active``: experts with rows; ``busiest``: most rows of one; ``seed``: of
    the draw, if any. ``reads``, ``multiplies``: whether the reader and cuBLAS bound it, so take turns with it.
    ``companions``: other calls of ours that take turns with it, by the name of their variant.
    """

    family: str
    kind: str
    layer: Layer
    layout: str
    name: str
    size: int
    rows: int
    active: int
    busiest: int
    seed: int | None
    reads: bool
    multiplies: bool
    companions: tuple[tuple[str, AnyCase], ...]

    def rows_per_expert(self) -> np.ndarray:
        """Rows of each expert, int64 [experts]."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Packed bytes of the active experts: what a call must read at least."""
        return self.active * self.layer.expert_bytes

    @property
    def flops(self) -> int:
        """Operations over the rows that are computed."""
        return 2 * self.rows * self.layer.n * self.layer.k
