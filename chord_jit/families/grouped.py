"""The grouped family: W4A16 GEMM over rows that lie together by expert, contiguous (prefill) or masked (decode)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from chord_jit import device, knobs
from chord_jit.device import DeviceFacts
from chord_jit.families import grouped_launch, grouped_problem, host, kernels
from chord_jit.families.grouped_launch import Bound
from chord_jit.families.grouped_problem import GroupedProblem
from chord_jit.families.grouped_refusals import ASKED, CHOOSE, check_layout, refuse_contiguous, refuse_masked
from chord_jit.families.grouped_sizes import size_for, sizes
from chord_jit.families.indexed_problem import dequant_for
from chord_jit.families.refusals import check_hint, check_shape, out_fits, refuse_out
from chord_jit.formats.w4a16_layout import LAYOUT_VERSION, PackedW4A16
from chord_jit.jit.spec import KernelSpec
from chord_jit.routing import grouped as layouts
from chord_jit.routing.checks import INT32_MAX
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule

#: Calls of one process that differ in more than this many ways start over; each entry is one small object.
_MAX_PLANS = 4096


class GroupedFamily:
    """See ``families.base.Family``."""

    name = "grouped"

    def __init__(self) -> None:
        self._plans: dict[tuple, Bound] = {}

    # -- choice -------------------------------------------------------------------------------------------------------
    def problem(
        self, facts: DeviceFacts, experts: int, n: int, k: int, expected_rows: float, *,
        layout: str, interleaved: bool = False, swiglu: bool = False,
    ) -> GroupedProblem:
        """The problem of a call: its expected rows rounded, the architecture's dequantisation.

        Raises ``InputError`` / ``InputTypeError``.
        """
        check_shape(CHOOSE, experts, n, k)
        check_hint(CHOOSE, expected_rows)
        check_layout(layout)
        return GroupedProblem(
            facts=facts, experts=experts, n=n, k=k, expected_rows=size_for(layout, expected_rows), layout=layout,
            interleaved=interleaved, swiglu=swiglu, dequant=dequant_for(facts.arch),
        )  # fmt: skip

    def schedule(self, problem: GroupedProblem) -> Schedule:
        """Override, table, cost model; always legal. Raises ``OverrideError``."""
        return grouped_problem.choose(problem)

    def candidates(self, problem: GroupedProblem) -> Iterable[Schedule]:
        """Every legal schedule worth timing."""
        return grouped_problem.candidates(problem)

    def spec(self, problem: GroupedProblem, schedule: Schedule) -> KernelSpec:
        """The kernel of ``schedule``."""
        return kernels.spec(problem, schedule)

    def prepare(self, problem: GroupedProblem, schedule: Schedule, index: int) -> Bound:
        """The loaded kernel of ``schedule`` on device ``index``, bound to its grid; memoised."""
        return grouped_launch.prepare(problem, schedule, index)

    def deployment(self, model: Deployment, facts: DeviceFacts) -> Iterable[GroupedProblem]:
        """The layer's two projections in every layout and size, gate/up interleaved with SwiGLU."""
        for layout in layouts.LAYOUTS:
            for rows in sizes(layout):
                yield self.problem(facts, model.local_experts, *model.gate_up, rows, layout=layout, interleaved=True, swiglu=True)
                yield self.problem(facts, model.local_experts, *model.down, rows, layout=layout)

    # -- calls --------------------------------------------------------------------------------------------------------
    def contiguous(
        self, x: torch.Tensor, weight: PackedW4A16, m_indices: torch.Tensor | None, *, offsets: torch.Tensor | None, swiglu: bool,
        expected_rows: float | None, checked: bool, out: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``api.contiguous``."""
        if not (_fits(x, weight, swiglu, "contiguous") and x.dim() == 2 and _rows_fit(x.shape[0], weight, m_indices, offsets)):
            refuse_contiguous(x, weight, m_indices, offsets, swiglu)
            return host.contiguous(x, weight, m_indices, offsets=offsets, swiglu=swiglu, expected_rows=expected_rows, out=out)
        rows, experts = x.shape[0], weight.experts
        if expected_rows is None:
            expected_rows = rows / experts
        else:
            check_hint(CHOOSE, expected_rows)
        if offsets is None:
            if checked:
                layouts.check_block_values(m_indices, experts)
            return self._run(x, weight, "blocks", m_indices, rows, rows // layouts.BLOCK, 0, expected_rows, swiglu, out)
        if checked:
            layouts.check_offset_values(offsets, rows)
        return self._run(x, weight, "offsets", offsets, rows, experts, 0, expected_rows, swiglu, out)

    def masked(
        self, x: torch.Tensor, weight: PackedW4A16, masked_m: torch.Tensor, expected_m: int, *, swiglu: bool, checked: bool,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``api.masked``."""
        if not (_fits(x, weight, swiglu, "masked") and _counts_fit(x, weight, masked_m, expected_m)):
            refuse_masked(x, weight, masked_m, expected_m, swiglu)
            return host.masked(x, weight, masked_m, expected_m, swiglu=swiglu, out=out)
        if x.dim() == 3:
            x = x.view(-1, weight.k)
        rows, experts = x.shape[0], weight.experts
        if checked:
            layouts.check_count_values(masked_m, rows // experts)
        return self._run(x, weight, "masked", masked_m, rows, experts, rows // experts, expected_m, swiglu, out)

    def _run(
        self, x: torch.Tensor, weight: PackedW4A16, layout: str, values: torch.Tensor, rows: int, segments: int, max_m: int,
        expected_rows: float, swiglu: bool, out: torch.Tensor | None,
    ) -> torch.Tensor:
        shape = (rows, weight.n // 2 if swiglu else weight.n)
        index, address = weight.place
        if out is None:
            out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
        elif not out_fits(out, shape, index):
            refuse_out(ASKED["masked" if layout == "masked" else "contiguous"], out, "rows of x", shape, x.device)
        if rows == 0:
            return out
        key = (index, weight.n, weight.k, weight.experts, weight.interleaved, swiglu, layout, expected_rows, knobs.generation)
        bound = self._plans.get(key) or self._plan(key)
        if torch._C._cuda_getDevice() == index:
            bound(index, x, address, out.data_ptr(), values.data_ptr(), rows, segments, max_m)
        else:
            with torch.cuda.device(index):
                bound(index, x, address, out.data_ptr(), values.data_ptr(), rows, segments, max_m)
        return out

    def _plan(self, key: tuple) -> Bound:
        index, n, k, experts, interleaved, swiglu, layout, expected_rows, _ = key
        problem = self.problem(device.facts(index), experts, n, k, expected_rows, layout=layout, interleaved=interleaved, swiglu=swiglu)
        bound = self.prepare(problem, self.schedule(problem), index)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[key] = bound
        return bound


def _fits(x: torch.Tensor, weight: PackedW4A16, swiglu: bool, call: str) -> bool:
    """Whether activations and weight keep every rule of ``call``; ``grouped_refusals`` says which one they break."""
    if not (isinstance(weight, PackedW4A16) and isinstance(x, torch.Tensor)):
        return False
    index, address = weight.place
    return (
        x.dtype is torch.bfloat16 and x.get_device() == index >= 0 and x.dim() > 1 and x.shape[-1] == weight.k and x.is_contiguous()
        and (x.data_ptr() | address) % 16 == 0 and weight.layout_version == LAYOUT_VERSION
        and (weight.mode is None or weight.mode == call) and (weight.interleaved or not swiglu)
    )  # fmt: skip


def _rows_fit(rows: int, weight: PackedW4A16, m_indices: torch.Tensor | None, offsets: torch.Tensor | None) -> bool:
    if rows > INT32_MAX or (m_indices is None) == (offsets is None):
        return False
    index = weight.place[0]
    return layouts.blocks_fit(m_indices, rows, index) if offsets is None else layouts.offsets_fit(offsets, weight.experts, index)


def _counts_fit(x: torch.Tensor, weight: PackedW4A16, masked_m: torch.Tensor, expected_m: int) -> bool:
    rows = x.numel() // weight.k
    return (
        (x.dim() == 2 or x.dim() == 3 and x.shape[0] == weight.experts) and rows <= INT32_MAX
        and layouts.counts_fit(masked_m, rows, weight.experts, weight.place[0])
        and isinstance(expected_m, int) and expected_m is not True and 0 < expected_m <= INT32_MAX
    )  # fmt: skip


FAMILY = GroupedFamily()
