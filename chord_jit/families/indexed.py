"""The indexed family: W4A16 GEMM over rows that a routing names (vLLM's sorted_ids), one launch a projection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from chord_jit import device, knobs
from chord_jit.device import DeviceFacts
from chord_jit.families import host, indexed_launch, indexed_problem, kernels
from chord_jit.families.indexed_launch import Bound
from chord_jit.families.indexed_problem import IndexedProblem, shared_block_m, size_for
from chord_jit.families.indexed_refusals import ASKED, CHOOSE, refuse_call, weights_fit
from chord_jit.families.refusals import check_hint, check_shape, out_fits, refuse_out
from chord_jit.formats.w4a16_layout import LAYOUT_VERSION, PackedW4A16
from chord_jit.jit.spec import KernelSpec
from chord_jit.routing.indexed import IndexedRouting, check_values
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.schedule import Schedule

#: Most tokens of a step, prefill included, that warm-up prepares for.
_WARM_TOKENS = 65536

#: Calls of one process that differ in more than this many ways start over; each entry is one small object.
_MAX_PLANS = 4096


class IndexedFamily:
    """See ``families.base.Family``."""

    name = "indexed"

    def __init__(self) -> None:
        self._plans: dict[tuple, Bound] = {}

    # -- choice -------------------------------------------------------------------------------------------------------
    def problem(
        self, facts: DeviceFacts, experts: int, n: int, k: int, expected_rows: float, *,
        block_m: int = 0, interleaved: bool = False, swiglu: bool = False, weighted: bool = False,
    ) -> IndexedProblem:
        """The problem of a call: its expected rows rounded, the architecture's dequantisation.

        Raises ``InputError`` / ``InputTypeError``.
        """
        check_shape(CHOOSE, experts, n, k)
        check_hint(CHOOSE, expected_rows)
        dequant = indexed_problem.dequant_for(facts.arch)
        rows = size_for(expected_rows)
        return IndexedProblem(facts, experts, n, k, rows, block_m, interleaved, swiglu, weighted, dequant)

    def schedule(self, problem: IndexedProblem) -> Schedule:
        """Override, table, cost model; always legal. Raises ``OverrideError``."""
        return indexed_problem.choose(problem)

    def candidates(self, problem: IndexedProblem) -> Iterable[Schedule]:
        """Every legal schedule worth timing."""
        return indexed_problem.candidates(problem)

    def spec(self, problem: IndexedProblem, schedule: Schedule) -> KernelSpec:
        """The kernel of ``schedule``."""
        return kernels.spec(problem, schedule)

    def deployment(self, model: Deployment, facts: DeviceFacts) -> Iterable[IndexedProblem]:
        """The layer's two projections at every size of a step of up to 65536 tokens, over all ranks.

        gate/up is asked for interleaved with SwiGLU, down with and without routing weights.
        """
        n, k = model.gate_up
        for rows in sorted({size_for(tokens * model.top_k / model.experts) for tokens in range(1, _WARM_TOKENS + 1)}):
            free = self.problem(facts, model.local_experts, n, k, rows, interleaved=True, swiglu=True)
            block_m = shared_block_m(free, self.problem(facts, model.local_experts, *model.down, rows, weighted=True))
            yield replace(free, block_m=block_m)
            for weighted in (False, True):
                yield self.problem(facts, model.local_experts, *model.down, rows, block_m=block_m, weighted=weighted)

    # -- call ---------------------------------------------------------------------------------------------------------
    def run(
        self, x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, *, swiglu: bool, topk_weights: torch.Tensor | None,
        expected_rows: float | None, checked: bool, out: torch.Tensor | None, after: int = indexed_launch.ANYTHING,
    ) -> torch.Tensor:
        """See ``api.indexed``. ``after``: what the launch before is, see ``indexed_launch``."""
        if not _fits(x, weight, routing, swiglu, topk_weights):
            refuse_call(x, weight, routing, swiglu, topk_weights)
            return host.indexed(
                x, weight, routing, swiglu=swiglu, topk_weights=topk_weights, expected_rows=expected_rows, checked=checked, out=out
            )
        shape = (routing.routed_rows, weight.n // 2 if swiglu else weight.n)
        index, address = weight.place
        if out is None:
            out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
        elif not out_fits(out, shape, index):
            refuse_out(ASKED, out, "routed rows", shape, x.device)
        if expected_rows is not None:
            check_hint(CHOOSE, expected_rows)
        if checked:
            check_values(routing)
        if shape[0] == 0:
            return out
        key = (index, weight.n, weight.k, weight.experts, weight.interleaved, swiglu, topk_weights is not None, shape[0],
               routing.global_experts, routing.block_m, expected_rows, knobs.generation)  # fmt: skip
        bound = self._plans.get(key) or self._plan(key)
        row_weights = 0 if topk_weights is None else topk_weights.data_ptr()
        if torch._C._cuda_getDevice() == index:
            bound(index, x.data_ptr(), address, out.data_ptr(), row_weights, routing.place, shape[0], routing.top_k, after)
        else:
            with torch.cuda.device(index):
                bound(index, x.data_ptr(), address, out.data_ptr(), row_weights, routing.place, shape[0], routing.top_k, after)
        return out

    def _plan(self, key: tuple) -> Bound:
        index, n, k, experts, interleaved, swiglu, weighted, rows, global_experts, block_m, expected_rows, _ = key
        problem = self.problem(
            device.facts(index), experts, n, k, rows / global_experts if expected_rows is None else expected_rows,
            block_m=block_m, interleaved=interleaved, swiglu=swiglu, weighted=weighted,
        )  # fmt: skip
        bound = self.prepare(problem, self.schedule(problem), index)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[key] = bound
        return bound

    def prepare(self, problem: IndexedProblem, schedule: Schedule, index: int) -> Bound:
        """The loaded kernel of ``schedule`` on device ``index``, bound to its grid and block size; memoised."""
        return indexed_launch.prepare(problem, schedule, index)


def _fits(x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, swiglu: bool, topk_weights: torch.Tensor | None) -> bool:
    """Whether a call keeps every rule; ``refuse_call`` says which one it breaks."""
    if not (isinstance(weight, PackedW4A16) and isinstance(routing, IndexedRouting) and isinstance(x, torch.Tensor)):
        return False
    index = weight.place[0]
    return (
        x.dtype is torch.bfloat16 and x.get_device() == index >= 0 and x.shape == (routing.routed_rows // routing.top_k, weight.k)
        and x.is_contiguous() and (x.data_ptr() | weight.place[1]) % 16 == 0
        and routing.place[0] == index and routing.experts == weight.experts
        and weight.layout_version == LAYOUT_VERSION and weight.mode is None and (weight.interleaved or not swiglu)
        and (topk_weights is None or weights_fit(topk_weights, routing, index))
    )  # fmt: skip


FAMILY = IndexedFamily()
