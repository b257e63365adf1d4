"""From a schedule of the grouped family to a launch: loaded kernel, grid, parameters."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

from chord_jit import knobs
from chord_jit.families import kernels
from chord_jit.families.grouped_problem import GroupedProblem
from chord_jit.jit import scratch, slots, tensor_map
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import legality, wgmma
from chord_jit.schedules.schedule import Schedule

#: chord::W4A16WgmmaParams: x descriptor, weight, out, ticket, joints, sums, layout; segments, rows, max_m, experts.
WGMMA_PARAMS = struct.Struct(f"<{tensor_map.BYTES}s6Q4i")
#: chord::W4A16MmaParams<GroupedParams>: x, weight, out, row_weights, ticket, layout; segments, rows, max_m, experts,
#: routed_before, reserved.
MMA_PARAMS = struct.Struct("<6Q6i")

#: ``bound(index, x, weight, out, layout, rows, segments, max_m)``: enqueue on the current stream of device ``index``, the
#: current one. ``x``: the activations; the rest addresses and counts.
Bound = Callable[[int, torch.Tensor, int, int, int, int, int, int], None]

_bound: dict[tuple[KernelSpec, int, int], tuple[int, Bound]] = {}


def prepare(problem: GroupedProblem, schedule: Schedule, index: int) -> Bound:
    """The loaded kernel of ``schedule`` on device ``index``, bound to its grid; memoised until a knob changes."""
    spec = kernels.spec(problem, schedule)
    key = (spec, index, problem.experts)
    return knobs.until_changed(_bound, key, _BINDERS[schedule.kernel], problem, schedule, spec, index)


def _wgmma(problem: GroupedProblem, schedule: Schedule, spec: KernelSpec, index: int) -> Bound:
    sizes = wgmma.shape(problem, schedule)
    launch = kernels.bind(spec, index, sizes.threads, sizes.shared_bytes, problem.facts.sms * schedule.ctas, schedule.cn, WGMMA_PARAMS)
    experts, k, box_rows = problem.experts, problem.k, sizes.box_rows
    sums_bytes = sizes.sums_bytes * launch.ctas if schedule.split == 2 else 0

    def enqueue(index: int, x: torch.Tensor, weight: int, out: int, layout: int, rows: int, segments: int, max_m: int) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        slot = slots.address(index, stream)
        sums = scratch.address(index, stream, sums_bytes) if sums_bytes else 0
        described = tensor_map.rows_of(x.data_ptr(), rows, k, box_rows)
        launch(stream, described, weight, out, slot, slot + slots.JOINTS_AT, sums, layout, segments, rows, max_m, experts)

    return enqueue


def _mma(problem: GroupedProblem, schedule: Schedule, spec: KernelSpec, index: int) -> Bound:
    sizes = legality.mma_shape(problem, schedule)
    launch = kernels.bind(spec, index, sizes.threads, sizes.shared_bytes, problem.facts.sms * schedule.ctas, 1, MMA_PARAMS)
    experts = problem.experts

    def enqueue(index: int, x: torch.Tensor, weight: int, out: int, layout: int, rows: int, segments: int, max_m: int) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        launch(stream, x.data_ptr(), weight, out, 0, slots.address(index, stream), layout, segments, rows, max_m, experts, 0, 0)

    return enqueue


_BINDERS = {"w4a16_mma": _mma, "w4a16_wgmma": _wgmma}
