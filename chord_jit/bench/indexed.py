"""Indexed cases: routed rows named by ``sorted_ids``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from chord_jit import api
from chord_jit.bench.fixed import FixedIndexed
from chord_jit.bench.indexed_cases import Case
from chord_jit.bench.routed import REFERENCE_BLOCK, RoutedInputs
from chord_jit.device import DeviceFacts
from chord_jit.families.indexed import FAMILY, IndexedFamily
from chord_jit.families.indexed_problem import IndexedProblem
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.reference.indexed import indexed
from chord_jit.schedules.schedule import Schedule


@dataclass(frozen=True, eq=False)
class IndexedInputs(RoutedInputs):
    """See ``sides.Inputs``."""

    case: Case
    active: tuple[int, ...]

    def empty_output(self, features: int) -> torch.Tensor:
        return self.empty(self.case.rows, features)

    def exact(self, weight: PackedW4A16, *, swiglu: bool) -> torch.Tensor:
        return indexed(self.x, weight, self.routing(REFERENCE_BLOCK), swiglu=swiglu)

    def peer_arguments(self, block_m: int) -> dict:
        routing = self.routing(block_m)
        return dict(
            sorted_ids=routing.sorted_ids, expert_ids=routing.expert_ids, num_tokens_padded=routing.num_tokens_padded, top_k=routing.top_k
        )


class IndexedSide:
    """See ``sides.Side``."""

    family = FAMILY

    def inputs(self, case: Case, generator: torch.Generator) -> IndexedInputs:
        picks = case.draw.topk_ids()
        ids = torch.from_numpy(picks).to(generator.device)
        if case.layer.routed_input:
            ids = ids.reshape(-1, 1)
        x = torch.randn(ids.shape[0], case.layer.k, generator=generator, device=generator.device).to(torch.bfloat16)
        return IndexedInputs(case, x, ids.contiguous(), tuple(np.unique(picks).tolist()))

    def fixed(self, schedule: Schedule) -> FixedIndexed:
        return FixedIndexed(schedule)

    def free_problem(self, case: Case, facts: DeviceFacts, *, swiglu: bool) -> IndexedProblem:
        layer = case.layer
        return FAMILY.problem(facts, layer.experts, layer.n, layer.k, case.expected_rows, interleaved=swiglu, swiglu=swiglu)

    def chosen(self, case: Case, facts: DeviceFacts, *, swiglu: bool, family: IndexedFamily) -> tuple[IndexedProblem, Schedule]:
        free = self.free_problem(case, facts, swiglu=swiglu)
        problem = replace(free, block_m=family.schedule(free).bm)
        return problem, family.schedule(problem)

    def public_call(
        self, problem: IndexedProblem, weight: PackedW4A16, inputs: IndexedInputs, out: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        routing = inputs.routing(problem.block_m)
        return lambda: api.indexed(inputs.x, weight, routing, swiglu=problem.swiglu, out=out)

    def family_call(
        self, family: IndexedFamily, problem: IndexedProblem, weight: PackedW4A16, inputs: IndexedInputs, out: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        routing = inputs.routing(problem.block_m)
        wishes = dict(swiglu=problem.swiglu, topk_weights=None, expected_rows=None, checked=False, out=out)
        return lambda: family.run(inputs.x, weight, routing, **wishes)


SIDE = IndexedSide()
