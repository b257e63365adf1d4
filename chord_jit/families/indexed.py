"""The indexed family: W4A16 GEMM over rows that a routing names (vLLM's sorted_ids), one launch a projection."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch

from chord_jit import device, knobs
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError, InputTypeError
from chord_jit.families import indexed_problem
from chord_jit.families.indexed_problem import IndexedProblem
from chord_jit.formats.w4a16_layout import PackedW4A16, require_layout
from chord_jit.jit import engine, slots
from chord_jit.jit.launch import Launch
from chord_jit.jit.spec import KernelSpec
from chord_jit.routing.indexed import IndexedRouting, check_trusted, check_values
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import mma_shape, mma_workspace
from chord_jit.schedules.schedule import Schedule

#: chord::W4A16MmaParams: x, weight, out, row_weights, tickets, partials, sorted_ids, expert_ids, padded; id_capacity,
#: block_capacity, routed_rows, top_k, experts, sub_blocks.
PARAMS = struct.Struct("<9Q6i")

#: Calls of one process that differ in more than this many ways start over; each entry is one small object.
_MAX_PLANS = 4096


class _Plan:
    """What a warm call needs beyond its tensors."""

    __slots__ = ("launch", "schedule", "sub_blocks", "workspace")

    def __init__(self, launch: Launch, schedule: Schedule, sub_blocks: int, workspace: int):
        self.launch, self.schedule, self.sub_blocks, self.workspace = launch, schedule, sub_blocks, workspace


class IndexedFamily:
    """See ``families.base.Family``."""

    name = "indexed"

    def __init__(self) -> None:
        self._plans: dict[tuple, _Plan] = {}
        self._launches: dict[tuple, Launch] = {}

    # -- choice -------------------------------------------------------------------------------------------------------
    def problem(
        self, facts: DeviceFacts, experts: int, n: int, k: int, expected_rows: float, *,
        block_m: int = 0, interleaved: bool = False, swiglu: bool = False, weighted: bool = False,
    ) -> IndexedProblem:
        """The problem of a call, with the architecture's dequantisation."""
        dequant = indexed_problem.dequant_for(facts.arch)
        return IndexedProblem(facts, experts, n, k, expected_rows, block_m, interleaved, swiglu, weighted, dequant)

    def schedule(self, problem: IndexedProblem) -> Schedule:
        """Override, table, cost model; always legal. Raises ``OverrideError``."""
        return indexed_problem.choose(problem)

    def candidates(self, problem: IndexedProblem) -> Iterable[Schedule]:
        """Every legal schedule worth timing."""
        return indexed_problem.candidates(problem)

    def spec(self, problem: IndexedProblem, schedule: Schedule) -> KernelSpec:
        """The kernel of ``schedule``."""
        return indexed_problem.spec(problem, schedule)

    def deployment(self, model: Deployment, facts: DeviceFacts) -> Iterable[IndexedProblem]:
        """The layer's two projections over every rows-per-expert class that decode meets.

        gate/up is asked for interleaved with SwiGLU, down with and without routing weights.
        """
        tokens = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 50, 64, 96, 128)
        for count in tokens:
            rows = count * model.top_k / model.experts
            n, k = model.gate_up
            free = self.problem(facts, model.local_experts, n, k, rows, interleaved=True, swiglu=True)
            block_m = self.schedule(free).bm
            yield self.problem(facts, model.local_experts, n, k, rows, block_m=block_m, interleaved=True, swiglu=True)
            for weighted in (False, True):
                yield self.problem(facts, model.local_experts, *model.down, rows, block_m=block_m, weighted=weighted)

    # -- call ---------------------------------------------------------------------------------------------------------
    def run(
        self, x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, *, swiglu: bool, topk_weights: torch.Tensor | None,
        expected_rows: float | None, checked: bool, out: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``api.indexed``."""
        _check(x, weight, routing, swiglu, topk_weights)
        rows = routing.routed_rows
        columns = weight.n // 2 if swiglu else weight.n
        if out is None:
            out = torch.empty((rows, columns), dtype=torch.bfloat16, device=x.device)
        elif out.shape != (rows, columns) or out.dtype is not torch.bfloat16 or out.device != x.device or not out.is_contiguous():
            _refuse_out(out, rows, columns, x.device)
        if checked:
            check_values(routing)
        if rows == 0:
            return out
        index = x.get_device()
        key = (index, weight.n, weight.k, weight.experts, weight.interleaved, swiglu, topk_weights is not None, rows,
               routing.global_experts, routing.block_m, expected_rows, knobs.generation)  # fmt: skip
        plan = self._plans.get(key)
        if torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index):
                self._launch(plan or self._plan(key, weight, routing), index, x, weight, routing, topk_weights, out)
        else:
            self._launch(plan or self._plan(key, weight, routing), index, x, weight, routing, topk_weights, out)
        return out

    @staticmethod
    def _launch(plan: _Plan, index: int, x, weight, routing, topk_weights, out) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        tickets, partials = slots.acquire(index, stream, plan.workspace)
        plan.launch(
            stream, x.data_ptr(), weight.data.data_ptr(), out.data_ptr(), 0 if topk_weights is None else topk_weights.data_ptr(),
            tickets, partials, routing.sorted_ids.data_ptr(), routing.expert_ids.data_ptr(),
            routing.num_tokens_padded.data_ptr(), routing.sorted_ids.numel(), routing.max_blocks, routing.routed_rows,
            routing.top_k, weight.experts, plan.sub_blocks,
        )  # fmt: skip

    def _plan(self, key: tuple, weight: PackedW4A16, routing: IndexedRouting) -> _Plan:
        index, n, k, experts, interleaved, swiglu, weighted, rows, global_experts, block_m, expected_rows, _ = key
        facts = device.facts(index)
        if expected_rows is None:
            expected_rows = rows / global_experts
        problem = self.problem(
            facts, experts, n, k, expected_rows, block_m=block_m, interleaved=interleaved, swiglu=swiglu, weighted=weighted
        )
        schedule = self.schedule(problem)
        workspace = mma_workspace(problem, schedule)
        plan = _Plan(self.prepare(problem, schedule, index), schedule, block_m // schedule.bm, workspace)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def prepare(self, problem: IndexedProblem, schedule: Schedule, index: int) -> Launch:
        """The loaded kernel of ``schedule`` on device ``index``, bound to its grid; memoised."""
        kernel_spec = self.spec(problem, schedule)
        key = (kernel_spec, index)
        launch = self._launches.get(key)
        if launch is None:
            shape = mma_shape(problem, schedule)
            kernel = engine.load(kernel_spec, index, shape.shared_bytes)
            slots.prepare(index)
            grid = (problem.facts.sms * schedule.ctas, 1, 1)
            launch = Launch(kernel.handle, grid, shape.threads, 1, shape.shared_bytes, PARAMS)
            self._launches[key] = launch
        return launch


def _check(x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, swiglu: bool, topk_weights: torch.Tensor | None) -> None:
    if not isinstance(weight, PackedW4A16):
        raise InputTypeError(
            "run indexed W4A16", "weight must be a packed weight", {"type": type(weight).__name__}, "pack it once with pack_w4a16"
        )
    require_layout(weight)
    data = weight.data
    if not isinstance(x, torch.Tensor) or x.dtype is not torch.bfloat16 or x.dim() != 2:
        raise InputTypeError(
            "run indexed W4A16", "x must be a BF16 matrix [M, K]",
            {"x": f"{getattr(x, 'dtype', type(x).__name__)} {list(getattr(x, 'shape', []))}"}, "pass activations as torch.bfloat16 [M, K]",
        )
    if not x.is_cuda or data.get_device() != x.get_device():
        raise InputError(
            "run indexed W4A16", "x and weight must lie on one CUDA device", {"x": x.device, "weight": data.device},
            "move both to the GPU; on a CPU use chord_jit.reference",
        )
    if x.shape[1] != weight.k or not x.is_contiguous() or x.data_ptr() % 16:
        raise InputError(
            "run indexed W4A16", "x must be contiguous, 16-byte aligned, and as wide as the weight's K",
            {"x": list(x.shape), "strides": list(x.stride()), "address % 16": x.data_ptr() % 16, "K": weight.k}, "pass x.contiguous()",
        )
    check_trusted(routing, rows=x.shape[0], experts=weight.experts, device=x.device)
    if swiglu and not weight.interleaved:
        raise InputError(
            "run indexed W4A16 with SwiGLU", "gate and up must be packed interleaved", {"interleaved": weight.interleaved},
            "pack the weight with interleave=True",
        )
    if topk_weights is not None and (
        topk_weights.dtype is not torch.float32 or topk_weights.numel() != routing.routed_rows
        or topk_weights.device != x.device or not topk_weights.is_contiguous()
    ):  # fmt: skip
        raise InputError(
            "run indexed W4A16 with routing weights", "topk_weights must be contiguous FP32, one per routed row, on the device of x",
            {"dtype": topk_weights.dtype, "shape": list(topk_weights.shape), "device": topk_weights.device, "routed_rows": routing.routed_rows},
            "pass the router's weights as float32 [M, top_k]",
        )


def _refuse_out(out: torch.Tensor, rows: int, columns: int, where: torch.device) -> None:
    raise InputError(
        "run indexed W4A16 into out", "out must be contiguous BF16 [routed rows, columns] on the device of x",
        {"out": list(out.shape), "dtype": out.dtype, "device": out.device, "wanted": [rows, columns], "x": where},
        "allocate out with that shape, or leave it out",
    )


FAMILY = IndexedFamily()
