"""cuBLAS on a dense BF16 product that fills the GPU: the rate that shares of arithmetic are quoted against."""

from __future__ import annotations

import torch

_SIDE = 8192


class Dense:
    """One ``torch.mm`` of 8192 x 8192 x 8192 BF16 on normal random data; calling it enqueues."""

    flops = 2 * _SIDE**3

    def __init__(self, generator: torch.Generator):
        self._x, self._y = (self._normal(generator) for _ in range(2))
        self._out = torch.empty_like(self._x)

    def __call__(self) -> None:
        torch.mm(self._x, self._y.t(), out=self._out)

    @staticmethod
    def _normal(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(_SIDE, _SIDE, generator=generator, device=generator.device).to(torch.bfloat16)
