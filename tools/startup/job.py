"""The one job that every library of the start-up comparison does: a small W4A16 weight, a few tokens, routed rows."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK, GROUP = 16, 32
#: Above this relative error a result is wrong, and its times mean nothing.
WRONG_ABOVE = 1e-2


@dataclass(frozen=True)
class Job:
    """Kimi K2's gate/up projection with few experts, in a decode step."""

    experts: int = 8
    n: int = 4096
    k: int = 7168
    tokens: int = 8
    top_k: int = 2

    @property
    def rows(self) -> int:
        """Routed rows."""
        return self.tokens * self.top_k


class Data:
    """The job's tensors on ``device``: ``words`` int32 [E, N, K/8], low nibble first; ``scale`` BF16 [E, N, K/32]; ``ids`` int32."""

    def __init__(self, job: Job, device: str):
        import torch

        generator = torch.Generator(device=device).manual_seed(20)
        at = dict(generator=generator, device=device)
        self.words = torch.randint(-(2**31), 2**31 - 1, (job.experts, job.n, job.k // 8), dtype=torch.int32, **at)
        self.scale = (torch.rand(job.experts, job.n, job.k // GROUP, **at) * 0.02 + 0.005).to(torch.bfloat16)
        self.x = torch.randn(job.tokens, job.k, **at).to(torch.bfloat16)
        self.ids = torch.rand(job.tokens, job.experts, **at).argsort(1)[:, : job.top_k].to(torch.int32)
        self.out = torch.full((job.rows, job.n), float("nan"), dtype=torch.bfloat16, device=device)

    def blocks(self, size: int) -> tuple:
        """``sorted_ids``, ``expert_ids`` and the padded count of the routed rows in blocks of ``size``, made on the host."""
        import torch

        ids, experts = self.ids.flatten().tolist(), self.scale.shape[0]
        slots, owners = [], []
        for expert in range(experts):
            mine = [row for row, owner in enumerate(ids) if owner == expert]
            mine += [len(ids)] * (-len(mine) % size)
            slots += mine
            owners += [expert] * (len(mine) // size)
        return tuple(torch.tensor(values, dtype=torch.int32, device=self.ids.device) for values in (slots, owners, [len(slots)]))

    def error(self, result) -> float:
        """Relative L2 of ``result`` against FP32; infinite where a row was not written."""
        import torch

        wanted, owners = torch.empty(result.shape, device=result.device), self.ids.flatten()
        nibbles = torch.arange(8, device=self.words.device, dtype=torch.int32) * 4
        for expert in owners.unique().tolist():
            rows = (owners == expert).nonzero()[:, 0]
            codes = (self.words[expert, :, :, None] >> nibbles & 15).flatten(1).float() - 8
            weight = codes * self.scale[expert].float().repeat_interleave(GROUP, 1)
            wanted[rows] = self.x[rows // self.ids.shape[1]].float() @ weight.T
        found = ((result.float() - wanted).norm() / wanted.norm()).item()
        return found if found == found else float("inf")
