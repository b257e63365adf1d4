"""Builds the tensors of a grouped case on the device under test and calls the kernel between fences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import torch

import chord_jit
from chord_jit import PackedW4A16, device
from chord_jit.families.grouped import FAMILY
from chord_jit.reference import grouped as reference
from tests.gpu.counts import draw, owners_of, rows_for, values_of
from tests.gpu.forcing import forced_in
from tests.gpu.grouped_cases import GroupedCase
from tests.gpu.tensors import fenced, fenced_result, generator_of, weight_of

#: What the public calls name the tensor of each layout.
NAMES = {"masked": "masked_m", "offsets": "offsets", "blocks": "m_indices"}
LAYOUTS = tuple(NAMES)

forced = partial(forced_in, FAMILY)


@dataclass(frozen=True)
class GroupedWork:
    """The tensors of one call. ``values``: of its layout. ``hint``: expected rows that the call is told."""

    x: torch.Tensor
    weight: PackedW4A16
    layout: str
    values: torch.Tensor
    hint: int
    swiglu: bool = False

    @property
    def columns(self) -> int:
        return self.weight.n // 2 if self.swiglu else self.weight.n

    @property
    def owners(self) -> torch.Tensor:
        """The expert of each row, int64 [rows], -1 where it is nobody's."""
        return owners_of(self.layout, self.values, len(self.x), self.weight.experts)

    @property
    def owned(self) -> torch.Tensor:
        return self.owners >= 0

    @property
    def problem(self) -> object:
        weight, facts = self.weight, device.facts(self.x.get_device())
        return FAMILY.problem(
            facts, weight.experts, weight.n, weight.k, self.hint, layout=self.layout, interleaved=weight.interleaved, swiglu=self.swiglu
        )

    @property
    def numerics(self) -> str:
        """Whose error bounds hold for the kernel that the call takes."""
        problem = self.problem
        return "wgmma" if FAMILY.schedule(problem).kernel == "w4a16_wgmma" else problem.dequant

    def call(self, **options) -> torch.Tensor:
        if self.layout != "masked":
            options = {"expected_rows": self.hint, **options}
        return self._ask(chord_jit, **options)

    def fenced_call(self, **options) -> torch.Tensor:
        """The result in a poisoned ``out``; what lies around it must not change, nor the rows that nobody owns."""
        return fenced_result(lambda out: self.call(out=out, **options), self.columns, self.owned)

    def expected(self, variant: str = "exact") -> torch.Tensor:
        """float64, NaN in rows that nobody owns."""
        return self._ask(reference, variant=variant)

    def recounted(self, counts: torch.Tensor, generator: torch.Generator) -> GroupedWork:
        """The same activations with other rows per expert."""
        return replace(self, values=values_of(self.layout, counts, len(self.x), generator))

    def _ask(self, calls: ModuleType, **options) -> torch.Tensor:
        options["swiglu"] = self.swiglu
        if self.layout == "masked":
            return calls.masked(self.x, self.weight, self.values, self.hint, **options)
        return calls.contiguous(self.x, self.weight, **{NAMES[self.layout]: self.values}, **options)


def build(case: GroupedCase, where: torch.device, seed: int, *, power: int = 0) -> GroupedWork:
    """Fresh values for ``case``: x is normal x 2^power, and NaN in the rows that nobody owns."""
    generator = generator_of(where, seed)
    return work_of(case, draw(case.draw, case.experts, case.rows, generator), generator, power=power)


def work_of(case: GroupedCase, counts: torch.Tensor, generator: torch.Generator, *, power: int = 0) -> GroupedWork:
    """``build`` with these rows per expert."""
    where, rows = generator.device, rows_for(case.layout, counts, case.room)
    values = values_of(case.layout, counts, rows, generator)
    x = torch.randn(rows, case.k, generator=generator, device=where).mul_(2.0**power).bfloat16()
    x[owners_of(case.layout, values, rows, case.experts) < 0] = float("nan")
    weight = weight_of(case.experts, case.n, case.k, case.interleaved, where)
    return GroupedWork(fenced(x), weight, case.layout, values, case.expected_rows, case.swiglu)


def problem_of(case: GroupedCase, where: torch.device) -> object:
    """What the call of ``case`` asks of the family."""
    return FAMILY.problem(
        device.facts(where.index), case.experts, case.n, case.k, case.expected_rows,
        layout=case.layout, interleaved=case.interleaved, swiglu=case.swiglu,
    )  # fmt: skip
