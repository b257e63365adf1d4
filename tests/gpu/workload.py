"""Builds the tensors of an indexed case on the device under test and calls the kernel between fences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

import chord_jit
from chord_jit import IndexedRouting, PackedW4A16, device
from chord_jit.families.indexed import FAMILY
from chord_jit.reference.indexed import indexed as reference
from tests.gpu.cases import Case
from tests.gpu.forcing import forced_in
from tests.gpu.routers import EP, routing_of, valid_ids
from tests.gpu.tensors import fenced, fenced_result, generator_of, weight_of

forced = partial(forced_in, FAMILY)


@dataclass(frozen=True)
class Work:
    """The tensors of one call. ``hint``: expected rows that it is told, none where they follow from the routing."""

    x: torch.Tensor
    weight: PackedW4A16
    routing: IndexedRouting
    swiglu: bool = False
    topk_weights: torch.Tensor | None = None
    hint: float | None = None

    @property
    def columns(self) -> int:
        return self.weight.n // 2 if self.swiglu else self.weight.n

    @property
    def problem(self) -> object:
        weight, routing = self.weight, self.routing
        return FAMILY.problem(
            device.facts(self.x.get_device()), weight.experts, weight.n, weight.k,
            routing.routed_rows / routing.global_experts if self.hint is None else self.hint, block_m=routing.block_m,
            interleaved=weight.interleaved, swiglu=self.swiglu, weighted=self.topk_weights is not None,
        )  # fmt: skip

    @property
    def numerics(self) -> str:
        """Whose error bounds hold for the kernel that the call takes."""
        problem = self.problem
        return problem.dequant if FAMILY.schedule(problem).kernel == "w4a16_mma" else "wgmma"

    def call(self, **options) -> torch.Tensor:
        options = {"expected_rows": self.hint, **options}
        return chord_jit.indexed(self.x, self.weight, self.routing, swiglu=self.swiglu, topk_weights=self.topk_weights, **options)

    def fenced_call(self, **options) -> torch.Tensor:
        """The result in a poisoned ``out``; what lies around it must not change, nor the rows that no valid id names."""
        named = torch.zeros(self.routing.routed_rows, dtype=torch.bool, device=self.x.device)
        named[valid_ids(self.routing)] = True
        return fenced_result(lambda out: self.call(out=out, **options), self.columns, named)

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


def problem_of(case: Case, where: torch.device) -> object:
    """What the call of ``case`` asks of the family."""
    whole = case.experts * (EP if case.draw == "ep" else 1)
    return FAMILY.problem(
        device.facts(where.index), case.experts, case.n, case.k, case.tokens * case.top_k / whole,
        block_m=case.block_m, interleaved=case.interleaved, swiglu=case.swiglu, weighted=case.weighted,
    )  # fmt: skip
