"""From a schedule of the indexed family to a launch: loaded kernel, grid, parameters."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

from chord_jit import knobs
from chord_jit.families import kernels
from chord_jit.families.indexed_problem import IndexedProblem
from chord_jit.jit import scratch, slots
from chord_jit.jit.spec import KernelSpec
from chord_jit.schedules import legality, resident, wgmma
from chord_jit.schedules.schedule import Schedule

#: chord::W4A16MmaParams<IndexedParams>: x, weight, out, row_weights, ticket, sorted_ids, expert_ids, padded; id_capacity,
#: block_capacity, routed_rows, top_k, experts, sub_blocks; routed_before, reserved.
MMA_PARAMS = struct.Struct("<8Q8i")
#: chord::W4A16WgmmaParams<GatheredActivations>: x, row_weights, weight, out, ticket, joints, sums, and from sorted_ids on the same.
WGMMA_PARAMS = struct.Struct("<10Q6i")

#: chord::W4A16ResidentParams: x, row_weights, weight, out, ticket, and from sorted_ids on the same.
RESIDENT_PARAMS = struct.Struct("<8Q6i")

#: What the launch before a call's own is known to be on the stream: anything; the one that wrote the routing; a product of the same
#: routing. The last two let the call start while that launch still runs; after a product it reads the routing at once, too.
ANYTHING, ROUTING, PRODUCT = range(3)

#: ``bound(index, x, weight, out, row_weights, place, rows, top_k, after)``: enqueue on the current stream of device ``index``, the
#: current one. ``place``: of the routing; ``rows``: routed ones; ``after``: what the launch before is; the rest addresses and counts.
Bound = Callable[[int, int, int, int, int, tuple, int, int, int], None]

_bound: dict[tuple[KernelSpec, int, int, int], tuple[int, Bound]] = {}


def prepare(problem: IndexedProblem, schedule: Schedule, index: int) -> Bound:
    """The loaded kernel of ``schedule`` on device ``index``, bound to its grid and block size; memoised until a knob changes."""
    spec = kernels.spec(problem, schedule)
    sub_blocks = max(problem.block_m // schedule.bm, 1)
    key = (spec, index, problem.experts, sub_blocks)
    return knobs.until_changed(_bound, key, _BINDERS[schedule.kernel], problem, schedule, spec, index, sub_blocks)


def _mma(problem: IndexedProblem, schedule: Schedule, spec: KernelSpec, index: int, sub_blocks: int) -> Bound:
    sizes = legality.mma_shape(problem, schedule)
    ctas = problem.facts.sms * schedule.ctas
    alone = kernels.bind(spec, index, sizes.threads, sizes.shared_bytes, ctas, schedule.split, MMA_PARAMS)
    overlapping = alone.early()
    experts = problem.experts

    def enqueue(
        index: int, x: int, weight: int, out: int, row_weights: int, place: tuple, rows: int, top_k: int, after: int
    ) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        slot = slots.address(index, stream)
        launch = alone if after == ANYTHING else overlapping
        launch(stream, x, weight, out, row_weights, slot, *place[1:], rows, top_k, experts, sub_blocks, after == PRODUCT, 0)

    return enqueue


def _wgmma(problem: IndexedProblem, schedule: Schedule, spec: KernelSpec, index: int, sub_blocks: int) -> Bound:
    sizes = wgmma.shape(problem, schedule)
    launch = kernels.bind(spec, index, sizes.threads, sizes.shared_bytes, problem.facts.sms * schedule.ctas, 1, WGMMA_PARAMS)
    experts = problem.experts
    sums_bytes = sizes.sums_bytes * launch.ctas if schedule.split == 2 else 0

    def enqueue(
        index: int, x: int, weight: int, out: int, row_weights: int, place: tuple, rows: int, top_k: int, after: int
    ) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        slot = slots.address(index, stream)
        sums = scratch.address(index, stream, sums_bytes) if sums_bytes else 0
        joints = slot + slots.JOINTS_AT
        launch(stream, x, row_weights, weight, out, slot, joints, sums, *place[1:], rows, top_k, experts, sub_blocks)

    return enqueue


def _resident(problem: IndexedProblem, schedule: Schedule, spec: KernelSpec, index: int, sub_blocks: int) -> Bound:
    sizes = resident.shape(problem, schedule)
    launch = kernels.bind(spec, index, sizes.threads, sizes.shared_bytes, problem.facts.sms, 1, RESIDENT_PARAMS)
    experts = problem.experts

    def enqueue(
        index: int, x: int, weight: int, out: int, row_weights: int, place: tuple, rows: int, top_k: int, after: int
    ) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        slot = slots.address(index, stream)
        launch(stream, x, row_weights, weight, out, slot, *place[1:], rows, top_k, experts, sub_blocks)

    return enqueue


_BINDERS = {"w4a16_mma": _mma, "w4a16_wgmma": _wgmma, "w4a16_resident": _resident}
