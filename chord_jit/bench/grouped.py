"""Grouped cases: rows that lie together by expert, masked or contiguous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from chord_jit import api
from chord_jit.bench.fixed import FixedGrouped
from chord_jit.bench.grouped_cases import GroupedCase
from chord_jit.device import DeviceFacts
from chord_jit.families.grouped import FAMILY, GroupedFamily
from chord_jit.families.grouped_problem import GroupedProblem
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.reference import grouped as reference
from chord_jit.routing.grouped import BLOCK, blocks_of, offsets_of
from chord_jit.schedules.schedule import Schedule


@dataclass(frozen=True, eq=False)
class GroupedInputs:
    """See ``sides.Inputs``. ``counts``: int32 [experts].

    Rows of ``x`` that nobody owns are NaN: one that reached another row would show.
    """

    case: GroupedCase
    x: torch.Tensor
    counts: torch.Tensor
    active: tuple[int, ...]

    @property
    def offsets(self) -> torch.Tensor:
        """Exact prefix offsets, int64 [experts + 1]."""
        return offsets_of(self.counts)

    def empty_output(self, features: int) -> torch.Tensor:
        return torch.full((self.x.shape[0], features), float("nan"), dtype=torch.bfloat16, device=self.x.device)

    def exact(self, weight: PackedW4A16, *, swiglu: bool) -> torch.Tensor:
        return _LAYOUTS[self.case.layout].reference(self, weight, swiglu)

    def peer_arguments(self, block_m: int) -> dict:
        return _LAYOUTS[self.case.layout].peer_arguments(self)


@dataclass(frozen=True)
class _Layout:
    """What differs between layouts.

    ``capacity``: rows of ``x`` that each expert holds, from counts and the case. ``reference``: FP64. ``call``: ours, on
    the API or on a family, whose names and positions agree. ``peer_arguments``: of the peer's launch.
    """

    capacity: Callable[[torch.Tensor, GroupedCase], torch.Tensor]
    reference: Callable[[GroupedInputs, PackedW4A16, bool], torch.Tensor]
    call: Callable[[object, GroupedInputs, PackedW4A16, dict], Callable[[], torch.Tensor]]
    peer_arguments: Callable[[GroupedInputs], dict]


def _masked_call(target, inputs: GroupedInputs, weight: PackedW4A16, wishes: dict) -> Callable[[], torch.Tensor]:
    return lambda: target.masked(inputs.x, weight, inputs.counts, inputs.case.mean, **wishes)


def _offsets_call(target, inputs: GroupedInputs, weight: PackedW4A16, wishes: dict) -> Callable[[], torch.Tensor]:
    offsets, mean = inputs.offsets, inputs.case.mean
    return lambda: target.contiguous(inputs.x, weight, None, offsets=offsets, expected_rows=mean, **wishes)


def _blocks_call(target, inputs: GroupedInputs, weight: PackedW4A16, wishes: dict) -> Callable[[], torch.Tensor]:
    m_indices, mean = blocks_of(inputs.counts, inputs.x.shape[0]), inputs.case.mean
    return lambda: target.contiguous(inputs.x, weight, m_indices, offsets=None, expected_rows=mean, **wishes)


_LAYOUTS = {
    "masked": _Layout(
        lambda counts, case: torch.full_like(counts, case.max_m),
        lambda inputs, weight, swiglu: reference.masked(inputs.x, weight, inputs.counts, inputs.case.mean, swiglu=swiglu),
        _masked_call,
        lambda inputs: dict(expert_layout=inputs.counts, valid_shape_m=inputs.case.rows),
    ),
    "offsets": _Layout(
        lambda counts, case: counts,
        lambda inputs, weight, swiglu: reference.contiguous(inputs.x, weight, offsets=inputs.offsets, swiglu=swiglu),
        _offsets_call,
        lambda inputs: dict(expert_layout=inputs.offsets),
    ),
    "blocks": _Layout(
        lambda counts, case: (counts + BLOCK - 1) // BLOCK * BLOCK,
        lambda inputs, weight, swiglu: reference.contiguous(
            inputs.x, weight, blocks_of(inputs.counts, inputs.x.shape[0]), swiglu=swiglu
        ),
        _blocks_call,
        lambda inputs: dict(expert_layout=inputs.offsets),
    ),
}


class GroupedSide:
    """See ``sides.Side``."""

    family = FAMILY

    def inputs(self, case: GroupedCase, generator: torch.Generator) -> GroupedInputs:
        rows_per_expert = case.rows_per_expert()
        counts = torch.from_numpy(rows_per_expert).to(torch.int32)
        ends = torch.cumsum(_LAYOUTS[case.layout].capacity(counts, case), 0).tolist()
        owned = torch.zeros(ends[-1], dtype=torch.bool)
        for begin, count in zip([0, *ends], rows_per_expert.tolist(), strict=False):
            owned[begin : begin + count] = True
        x = torch.randn(ends[-1], case.layer.k, generator=generator, device=generator.device).to(torch.bfloat16)
        x[~owned.to(x.device)] = float("nan")
        return GroupedInputs(case, x, counts.to(x.device), tuple(rows_per_expert.nonzero()[0].tolist()))

    def fixed(self, schedule: Schedule) -> FixedGrouped:
        return FixedGrouped(schedule)

    def free_problem(self, case: GroupedCase, facts: DeviceFacts, *, swiglu: bool) -> GroupedProblem:
        layer = case.layer
        return FAMILY.problem(
            facts, layer.experts, layer.n, layer.k, case.mean, layout=case.layout, interleaved=swiglu, swiglu=swiglu
        )  # fmt: skip

    def chosen(self, case: GroupedCase, facts: DeviceFacts, *, swiglu: bool, family: GroupedFamily) -> tuple[GroupedProblem, Schedule]:
        problem = self.free_problem(case, facts, swiglu=swiglu)
        return problem, family.schedule(problem)

    def public_call(
        self, problem: GroupedProblem, weight: PackedW4A16, inputs: GroupedInputs, out: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        return _LAYOUTS[inputs.case.layout].call(api, inputs, weight, dict(swiglu=problem.swiglu, out=out))

    def family_call(
        self, family: GroupedFamily, problem: GroupedProblem, weight: PackedW4A16, inputs: GroupedInputs, out: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        return _LAYOUTS[inputs.case.layout].call(family, inputs, weight, dict(swiglu=problem.swiglu, checked=False, out=out))


SIDE = GroupedSide()
