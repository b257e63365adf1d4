"""Builds the tensors of a case on the device under test and calls the kernel between fences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

import chord_jit
from chord_jit import IndexedRouting, PackedW4A16, device
from chord_jit.families.indexed import FAMILY
from chord_jit.reference.indexed import indexed as reference
from tests.gpu.cases import Case
from tests.gpu.routers import EP, routing_of, valid_ids

#: Elements before and after every activation and output: NaN there, and untouched afterwards.
FENCE = 8192
#: A NaN that no arithmetic makes.
POISON = 0x7FA5


@dataclass(frozen=True)
class Work:
    """The tensors of one call."""

    x: torch.Tensor
    weight: PackedW4A16
    routing: IndexedRouting
    swiglu: bool = False
    topk_weights: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        return self.weight.n // 2 if self.swiglu else self.weight.n

    def call(self, **options) -> torch.Tensor:
        return chord_jit.indexed(self.x, self.weight, self.routing, swiglu=self.swiglu, topk_weights=self.topk_weights, **options)

    def fenced_call(self, **options) -> torch.Tensor:
        """The result in a poisoned ``out``; what lies around it must not change, nor the rows that no valid id names."""
        buffer, out = fenced_out(self.routing.routed_rows, self.columns, self.x.device)
        assert self.call(out=out, **options) is out
        bits = buffer.view(torch.int16)
        assert bool((bits[:FENCE] == POISON).all()) and bool((bits[-FENCE:] == POISON).all()), "wrote outside of out"
        unnamed = torch.ones(len(out), dtype=torch.bool, device=out.device)
        unnamed[valid_ids(self.routing)] = False
        assert bool((out.view(torch.int16)[unnamed] == POISON).all()), "wrote a row that no valid id names"
        return out

    def expected(self, variant: str = "exact") -> torch.Tensor:
        """float64, NaN in rows that no valid id names."""
        return reference(self.x, self.weight, self.routing, swiglu=self.swiglu, topk_weights=self.topk_weights, variant=variant)


def build(case: Case, where: torch.device, seed: int, *, power: int = 0) -> Work:
    """Fresh values for ``case``: x is normal x 2^power; rows of x that no valid id reads are NaN, and so are their weights."""
    generator = generator_of(where, seed)
    routing = routing_of(case, generator)
    ids = valid_ids(routing)
    x = torch.randn(case.tokens, case.k, generator=generator, device=where).mul_(2.0**power).bfloat16()
    named = torch.zeros(case.tokens, dtype=torch.bool, device=where)
    named[ids // case.top_k] = True
    x[~named] = float("nan")
    topk_weights = None
    if case.weighted:
        topk_weights = torch.full((case.tokens * case.top_k,), float("nan"), device=where)
        topk_weights[ids] = torch.rand(len(ids), generator=generator, device=where) + 0.1
        topk_weights = topk_weights.view(case.tokens, case.top_k)
    return Work(fenced(x), weight_of(case.experts, case.n, case.k, case.interleaved, where), routing, case.swiglu, topk_weights)


def generator_of(where: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(where).manual_seed(seed)


@lru_cache(maxsize=None)
def weight_of(experts: int, n: int, k: int, interleaved: bool, where: torch.device) -> PackedW4A16:
    """A packed weight with all 16 codes and scales of both signs, shared by the tests of this shape."""
    codes, scale = codes_of(experts, n, k, where)
    return chord_jit.pack_w4a16(codes, scale, interleave=interleaved)


def codes_of(experts: int, n: int, k: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = generator_of(where, experts * 1000003 + n * 1009 + k)
    codes = torch.randint(0, 16, (experts, n, k), dtype=torch.uint8, generator=generator, device=where)
    scale = torch.rand(experts, n, k // 32, generator=generator, device=where).add_(0.5).mul_(0.02)
    scale *= torch.randint(0, 2, scale.shape, generator=generator, device=where) * 2 - 1
    return codes, scale.bfloat16()


def fenced(x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x`` with NaN before its first and behind its last element."""
    buffer = torch.full((x.numel() + 2 * FENCE,), float("nan"), dtype=x.dtype, device=x.device)
    inside = buffer[FENCE : FENCE + x.numel()].view(x.shape)
    return inside.copy_(x)


def fenced_out(rows: int, columns: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned buffer, and the output inside of it."""
    buffer = torch.full((rows * columns + 2 * FENCE,), POISON, dtype=torch.int16, device=where).view(torch.bfloat16)
    return buffer, buffer[FENCE : FENCE + rows * columns].view(rows, columns)


def problem_of(case: Case, where: torch.device) -> object:
    """What the call of ``case`` asks of the family."""
    whole = case.experts * (EP if case.draw == "ep" else 1)
    return FAMILY.problem(
        device.facts(where.index), case.experts, case.n, case.k, case.tokens * case.top_k / whole,
        block_m=case.block_m, interleaved=case.interleaved, swiglu=case.swiglu, weighted=case.weighted,
    )  # fmt: skip
