"""The public calls. Each checks its arguments, builds a problem and hands over to a family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch.compiler import is_compiling

from chord_jit import device
from chord_jit import plan as _plan
from chord_jit.errors import InputError
from chord_jit.families import grouped as _grouped
from chord_jit.families import indexed as _indexed
from chord_jit.families.refusals import on_host
from chord_jit.formats.checkpoint import MoEWeights, load_moe_layers
from chord_jit.formats.packed_load import load_packed
from chord_jit.formats.w4a16 import PackedW4A16, pack_w4a16, pack_w4a16_grouped, require_layout, require_mode, unpack_w4a16
from chord_jit.jit.counters import Counters, counters
from chord_jit.jit.warmup import WarmupReport
from chord_jit.jit.warmup import warm_up as _build_all
from chord_jit.layers.moe import MoELayer
from chord_jit.routing.indexed import IndexedRouting
from chord_jit.routing.indexed import align_blocks as _align_blocks
from chord_jit.rows import route as _route
from chord_jit.schedules.deployment import Deployment

__all__ = [
    "Counters", "Deployment", "IndexedRouting", "MoELayer", "MoEWeights", "PackedW4A16", "WarmupReport", "align_blocks", "block_m_for",
    "contiguous", "counters", "indexed", "load_moe_layers", "load_packed", "masked", "pack_w4a16", "pack_w4a16_grouped",
    "unpack_w4a16", "warm_up",
]  # fmt: skip


def indexed(
    x: torch.Tensor,
    weight: PackedW4A16,
    routing: IndexedRouting,
    *,
    swiglu: bool = False,
    topk_weights: torch.Tensor | None = None,
    expected_rows: float | None = None,
    checked: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """W4A16 GEMM of every routed row with its expert's weight: ``out[i] = x[i // top_k] @ W[expert of i].T``.

    ``x``: BF16 [M, K], contiguous, 16-byte aligned. ``weight``: from ``pack_w4a16``, on the device of ``x``; one that
    ``pack_w4a16_grouped`` made for another call is refused.
    ``routing``: which row goes to which expert (``docs/routing.md``); trusted unless ``checked``, which reads it back,
    validates it and synchronises. ``swiglu``: apply SiLU(gate) * up in the epilogue; needs ``interleave=True`` at pack
    time. ``topk_weights``: FP32 [M, top_k], multiplied into each routed row before rounding. ``expected_rows``: rows
    per expert of this weight, a hint that steers the schedule only; default: routed rows / experts of the model.
    ``out``: BF16 [M * top_k, N], or [M * top_k, N / 2] with ``swiglu``, apart from ``x`` in memory; rows that no valid id
    names are not written.

    Returns ``out``. FP32 accumulation; the same inputs and schedule give the same bits every time. Zero rows launch
    nothing. The default dequantisation on Hopper is exact for activations below 2^67 and outputs above 2^-60;
    smaller outputs lose bits and flush to zero, larger activations make their row non-finite, as non-finite ones do, and
    touch no other row (measured in ``docs/kernels/w4a16_mma.md``). Many rows per expert go to a WGMMA kernel, which rounds
    each weight ``(code - 8) * scale`` once to BF16 and has no such range. Runs on the current stream of the tensors' device; a
    warm call neither allocates (with ``out=``) nor synchronises, and can be captured. ``torch.compile`` takes the call whole, as a
    custom op (``chord_jit.ops``); left to itself, torch makes a graph for the first token count, one for all others, and one each
    for 0 and 1. ``align_blocks`` may stand in the compiled function too.

    Raises ``InputError`` / ``InputTypeError`` before any launch, ``OverrideError`` for an illegal ``CHORD_W4A16_*``,
    ``CaptureError`` for a cold call inside CUDA graph capture.
    """
    if is_compiling():
        return _ops().indexed(
            x, weight, routing, swiglu=swiglu, topk_weights=topk_weights, expected_rows=expected_rows, checked=checked, out=out
        )
    return _indexed.FAMILY.run(
        x, weight, routing, swiglu=swiglu, topk_weights=topk_weights, expected_rows=expected_rows, checked=checked, out=out
    )


def contiguous(
    x: torch.Tensor,
    weight: PackedW4A16,
    m_indices: torch.Tensor | None = None,
    *,
    offsets: torch.Tensor | None = None,
    swiglu: bool = False,
    expected_rows: float | None = None,
    checked: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """W4A16 GEMM of rows that lie together by expert: ``out[r] = x[r] @ W[expert of r].T``. Made for prefill.

    ``x``: BF16 [m, K], contiguous, 16-byte aligned (TMA reads it). ``weight``: from ``pack_w4a16``, or from
    ``pack_w4a16_grouped`` with mode ``contiguous``, on the device of ``x``. Exactly one of the two layouts
    (``docs/routing.md``), trusted unless ``checked``, which reads it back, validates it and synchronises:

    ``m_indices``: int32 [m], m a multiple of 128: the expert of each row. Rows of one expert are adjacent and padded to
    blocks of 128; padding is -1. A block of padding alone may stand between experts and at the end.
    ``offsets``: int64 [E + 1], exact prefix offsets without padding: expert e owns the rows ``[offsets[e], offsets[e + 1])``.

    ``swiglu``: apply SiLU(gate) * up in the epilogue; needs ``interleave=True`` at pack time. ``expected_rows``: rows per
    expert, a hint that steers the schedule only; default: m / E. ``out``: BF16 [m, N], or [m, N / 2] with ``swiglu``, apart
    from ``x`` in memory.

    Returns ``out``. Padding rows and the rows from ``offsets[-1]`` on are never written, and whatever they hold in ``x``,
    NaN included, never influences another row. Weights are ``(code - 8) * scale`` rounded once to BF16, where the schedule
    takes the WGMMA kernel; accumulation is FP32; the same inputs and schedule give the same bits every time. Zero rows
    launch nothing. Runs on the current stream of the tensors' device; no count is read by the host; a warm call neither
    allocates (with ``out=``) nor synchronises, and can be captured: a replay follows what the layout then holds. Compiled as
    ``indexed`` is.

    Raises ``InputError`` / ``InputTypeError`` before any launch, ``OverrideError`` for an illegal ``CHORD_W4A16_*``,
    ``CaptureError`` for a cold or a checked call inside CUDA graph capture.
    """
    if is_compiling():
        return _ops().contiguous(
            x, weight, m_indices, offsets=offsets, swiglu=swiglu, expected_rows=expected_rows, checked=checked, out=out
        )
    return _grouped.FAMILY.contiguous(
        x, weight, m_indices, offsets=offsets, swiglu=swiglu, expected_rows=expected_rows, checked=checked, out=out
    )


def masked(
    x: torch.Tensor,
    weight: PackedW4A16,
    masked_m: torch.Tensor,
    expected_m: int,
    *,
    swiglu: bool = False,
    checked: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """W4A16 GEMM of each expert's first ``masked_m[e]`` of ``max_m`` rows with its weight. Made for decode.

    ``x``: BF16 [E * max_m, K] or [E, max_m, K], contiguous, 16-byte aligned (TMA reads it). ``weight``: from
    ``pack_w4a16``, or from ``pack_w4a16_grouped`` with mode ``masked``, on the device of ``x``. ``masked_m``: int32 [E] on
    the device, each in 0 .. max_m: the counts that are computed, trusted unless ``checked``, which reads them back,
    validates them and synchronises. ``expected_m``: positive int, rows that an expert can expect; it steers the
    schedule only, so any value gives the same rows. ``swiglu``: apply SiLU(gate) * up in the epilogue; needs
    ``interleave=True`` at pack time. ``out``: BF16 [E * max_m, N], or [E * max_m, N / 2] with ``swiglu``, apart from ``x`` in
    memory.

    Returns ``out``, always flat: expert e's rows begin at ``e * max_m``. Rows beyond an expert's count are never written,
    and whatever they hold in ``x``, NaN included, never influences another row. Numerics, determinism, streams,
    capture and errors are those of ``contiguous``.
    """
    if is_compiling():
        return _ops().masked(x, weight, masked_m, expected_m, swiglu=swiglu, checked=checked, out=out)
    return _grouped.FAMILY.masked(x, weight, masked_m, expected_m, swiglu=swiglu, checked=checked, out=out)


def _ops() -> ModuleType:
    """The custom ops, which a call goes through while ``torch.compile`` or ``torch.export`` traces it."""
    from chord_jit import ops

    return ops


def align_blocks(
    topk_ids: torch.Tensor, block_m: int, experts: int, *, expert_map: torch.Tensor | None = None, checked: bool = False
) -> IndexedRouting:
    """Group routed ids by expert, each group padded to blocks of ``block_m``: the routing of ``indexed`` calls.

    ``topk_ids``: int32 or int64 [M, top_k], the expert of each routed id; -1 marks an id that goes nowhere.
    ``experts``: experts of the weight on this rank, at most 2048 on a GPU, for at most 8388480 ids. ``expert_map``: int32
    [global experts] on the same device, the local expert of each global one or -1; without it ids are local already. Ids of no
    local expert are left out, and their output rows are not written.

    Buffers have the sizes that vLLM's ``moe_align_block_size`` allocates: capacity ``M * top_k + experts *
    (block_m - 1)``, at most ``M * top_k * block_m`` where ids are fewer than experts; so it need not be a multiple of
    ``block_m``. Sentinels are ``M * top_k``; ids of one expert ascend. What lies past ``num_tokens_padded`` is unspecified.

    On a GPU one kernel, or two launches of it for many ids; on the CPU, and inside a compiled function, torch. ``checked`` reads
    the values back (a synchronisation) and refuses ids outside -1 .. experts - 1 (or outside the map) and map entries outside
    -1 .. experts - 1; otherwise such ids are left out like -1. Raises ``InputTypeError`` for a type or dtype, ``InputError`` for a
    shape, device or value, ``CaptureError`` for a checked or cold call under CUDA graph capture.
    """
    if is_compiling() or not getattr(topk_ids, "is_cuda", False):
        return _align_blocks(topk_ids, block_m, experts, expert_map=expert_map, checked=checked)
    return _route.blocks(topk_ids, block_m, experts, expert_map=expert_map, checked=checked)[0]


def block_m_for(weight: PackedW4A16, expected_rows: float, *, swiglu: bool = False, down: PackedW4A16 | None = None) -> int:
    """Token tile that suits ``expected_rows`` rows per expert: the ``block_m`` to build a routing with.

    One routing serves gate/up and down: ask for the gate/up weight and name the ``down`` weight too, and the block size suits
    both; pass the same routing on (``for_down``). Any block size is served, since a call only takes tiles that divide it.
    Raises ``InputError`` / ``InputTypeError`` for what is no packed weight, a weight of another call, or no count,
    ``UnsupportedDeviceError`` for a weight on the CPU; with ``CHORD_BACKEND=reference`` that has an H200's.
    """
    problem = _free_problem(weight, expected_rows, swiglu)
    if down is None:
        return _indexed.FAMILY.schedule(problem).bm
    return _indexed.shared_block_m(problem, _free_problem(down, expected_rows, False, weighted=True))


def _free_problem(weight: PackedW4A16, expected_rows: float, swiglu: bool, weighted: bool = False) -> object:
    """What an indexed call on ``weight`` asks for while the routing's block size is open."""
    require_layout(weight)
    require_mode(weight, "indexed")
    facts = device.target("sm_90a") if on_host(weight.data) else device.facts(weight.place[0])
    return _indexed.FAMILY.problem(
        facts, weight.experts, weight.n, weight.k, expected_rows, interleaved=weight.interleaved, swiglu=swiglu, weighted=weighted
    )


def warm_up(
    problems: Deployment | str | Path | Iterable[object],
    *,
    tp: int = 1,
    ep: int = 1,
    jobs: int | None = None,
    progress: Callable[[int, int, object], None] | None = None,
) -> WarmupReport:
    """Compile every kernel that ``problems`` can ask for, and load those made for the current GPU.

    ``problems``: a deployment of a model (for the current GPU, or for sm_90a where there is none); the path of a model's
    config.json or folder, with ``tp`` ranks that share each expert's neurons or ``ep`` ranks that share the experts; or
    problems of any family (``families.indexed.FAMILY.problem(...)``). ``jobs``: compiler processes, default all cores.
    ``progress(done, total, spec)``. After it, the same problems neither compile nor load during a call on the device that
    was current, so they can be captured in a CUDA graph; repeat it for each device. A kernel that fails is in the report
    and stops no other. A deployment that was warmed up before is not chosen again (``docs/cache.md``).

    Raises ``InputTypeError`` for what is no problem, ``InputError`` for ``jobs`` below 1 and a config that is none.
    """
    here = device.current()
    if isinstance(problems, str | Path):
        problems = _plan.deployment_of(problems, tp=tp, ep=ep)
    elif (tp, ep) != (1, 1):
        raise InputError("warm up", "tp and ep go with the path of a model", {"tp": tp, "ep": ep}, "put them into the Deployment")
    if isinstance(problems, Deployment):
        found = _plan.plan(problems, [here or device.target("sm_90a")])
        report = found.warm_up(jobs=jobs, progress=progress)
        load = found.load
    else:
        wanted = list(_plan.chosen(problems))
        report = _build_all([spec for spec, *_ in wanted], jobs=jobs, progress=progress)
        load = partial(_plan.prepare, [choice for choice in wanted if choice[2].facts == here])
    if here is not None:
        load(torch.cuda.current_device(), without={spec for spec, _ in report.errors})
    return report
