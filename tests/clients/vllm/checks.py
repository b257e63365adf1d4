"""Weights, steps and the exact result of a layer, for vLLM's classes on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Rounding of three BF16 intermediates, relative to the largest value of a result.
TOLERANCE = 0.01


@dataclass
class Weights:
    """A rank's share of a layer as a checkpoint has it: ``codes`` int32 [E, N, K / 8], ``scales`` BF16 [E, N, K / 32], of w13 and w2."""

    codes: dict[str, torch.Tensor]
    scales: dict[str, torch.Tensor]

    @classmethod
    def random(cls, experts: int, hidden: int, neurons: int, *, group: int = 32, device: str = "cpu", seed: int = 0) -> Weights:
        """All sixteen codes, so that nothing can hide in a re-encoding."""
        source = torch.Generator().manual_seed(seed)
        shapes = {"w13": (2 * neurons, hidden), "w2": (hidden, neurons)}
        codes = {
            name: torch.randint(-(2**31), 2**31, (experts, n, k // 8), generator=source).int().to(device) for name, (n, k) in shapes.items()
        }
        scales = {
            name: ((torch.rand(experts, n, k // group, generator=source) + 0.5) / (8 * k**0.5)).bfloat16().to(device)
            for name, (n, k) in shapes.items()
        }
        return cls(codes, scales)

    def matrix(self, name: str, expert: int) -> torch.Tensor:
        """One expert in FP64, (code - 8) * scale."""
        words = self.codes[name][expert]
        codes = (words[..., None] >> torch.arange(0, 32, 4, device=words.device)).bitwise_and(15).reshape(words.shape[0], -1)
        scale = self.scales[name][expert].double()
        return (codes.double() - 8) * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)

    def expert(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """SwiGLU of one expert, FP64."""
        gate, up = (x.double() @ self.matrix("w13", index).T).chunk(2, dim=1)
        return (torch.nn.functional.silu(gate) * up) @ self.matrix("w2", index).T


@dataclass
class Step:
    """A step's tokens: ``x`` BF16 [M, H], ``ids`` [M, top_k] of the whole model, -1 nowhere, ``weights`` FP32 [M, top_k]."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def random(
        cls, tokens: int, hidden: int, experts: int, top_k: int, *, dtype: torch.dtype = torch.int32, device: str = "cpu", seed: int = 0
    ) -> Step:
        source = torch.Generator().manual_seed(seed)
        x = torch.randn(tokens, hidden, generator=source).bfloat16()
        scores = torch.rand(tokens, experts, generator=source)
        weights, ids = scores.topk(top_k, dim=1)
        return cls(x.to(device), ids.to(dtype).to(device), (weights / weights.sum(1, keepdim=True)).to(device))

    def exact(self, weights: Weights, expert_map: torch.Tensor | None = None) -> torch.Tensor:
        """The layer's result in FP64."""
        ids = self.ids.long()
        local = ids if expert_map is None else torch.where(ids >= 0, expert_map.long()[ids.clamp(min=0)], -1)
        total = torch.zeros(self.x.shape, dtype=torch.float64, device=self.x.device)
        for index in range(weights.codes["w13"].shape[0]):
            token, choice = (local == index).nonzero(as_tuple=True)
            if token.numel():
                total.index_add_(0, token, weights.expert(self.x[token], index) * self.weights[token, choice, None].double())
        return total


def check(result: torch.Tensor, exact: torch.Tensor) -> None:
    """Finite, and within rounding of the exact result."""
    assert result.dtype is torch.bfloat16 and result.shape == exact.shape
    assert torch.isfinite(result).all(), "not finite"
    worst, scale = float((result.double() - exact).abs().max()), float(exact.abs().max())
    assert worst <= TOLERANCE * scale, f"worst {worst} of {scale}"
