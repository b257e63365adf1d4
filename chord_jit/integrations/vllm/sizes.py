"""Sizes of a step: vLLM learns the block size of each before it routes, and we its kernels, all built when the layer is loaded.

vLLM estimates the routed rows of a step on this rank and looks them up in a list of intervals. Ours are few enough that every
kernel of every interval can be compiled and loaded beforehand; both projections of a layer get the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch

from chord_jit import api, knobs
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError
from chord_jit.families import grouped, indexed
from chord_jit.families.grouped_sizes import sizes as grouped_sizes
from chord_jit.integrations.vllm.layer import ServedLayer
from chord_jit.integrations.vllm.notes import note
from chord_jit.rows.family import RowsProblem

#: Humming's names of the GEMM types that a MoE layer can have, and our layouts.
LAYOUTS = {"indexed": "indexed", "grouped_contiguous": "offsets", "grouped_masked": "masked"}
#: From here on every tile is full: more rows an expert want no other kernel.
_MOST_ROWS = 512
_UNBOUNDED = 1 << 30


class Size(NamedTuple):
    """``upper``: most routed rows of the step on this rank. ``block_m``: of its routing. ``expected_rows``: an expert's."""

    upper: int
    block_m: int
    expected_rows: float


def heuristics(
    layer_config: ServedLayer, shape_m: int | None = None, use_f16_accum: bool = False, use_batch_invariant: bool = False,
    use_m_major_input_scale: bool = False, gemm_type: object = "dense", device: object = None, **options: object,
) -> list | dict:
    """What ``get_heuristics_config`` promises: ``[lower, upper, {"block_shape": [block_m, 0, 0]}]`` for ``lower < rows <= upper``.

    Builds and loads the layer's kernels for ``gemm_type``: vLLM asks while it processes weights. Accumulation is FP32 in any case.
    Raises ``InputError`` for a GEMM type that no MoE layer has, or batch invariance, and what compiling raises.
    """
    name = getattr(gemm_type, "value", gemm_type)
    asked = {"gemm_type": name, "use_batch_invariant": use_batch_invariant}
    if name not in LAYOUTS or use_batch_invariant:
        raise InputError(
            "choose schedules for a MoE layer of vLLM", f"the GEMM type must be one of {', '.join(LAYOUTS)}, without batch invariance",
            asked, "unset VLLM_BATCH_INVARIANT and VLLM_HUMMING_MOE_GEMM_TYPE, or set CHORD_VLLM=0",
        )
    found = of(layer_config, name)
    if layer_config.index >= 0:
        _build(layer_config.index, layer_config.facts, layer_config.num_experts, layer_config.shape_n, layer_config.shape_k, name, found)
    if shape_m is not None:
        return {"block_shape": [at(layer_config, name, shape_m).block_m, 0, 0]}
    # The first interval begins below zero: a step that is estimated at no rows has a block size too.
    lower = [-1, *(size.upper for size in found)]
    return [[low, size.upper, {"block_shape": [size.block_m, 0, 0]}] for low, size in zip(lower, found, strict=False)]


def of(config: ServedLayer, gemm_type: str) -> tuple[Size, ...]:
    """The sizes of a layer; its config keeps those it told vLLM, since the host's routing follows them."""
    found = config.sizes.get(gemm_type)
    if found is None:
        n, k = config.shape_n, config.shape_k
        pair = ((n, k), (k, n // 2)) if config.gated else ((2 * k, n), (n, k))
        found = config.sizes[gemm_type] = _sizes(config.facts, config.num_experts, *pair, gemm_type, knobs.generation)
    return found


def at(config: ServedLayer, gemm_type: str, rows: int) -> Size:
    """The size of a step with ``rows`` routed rows on this rank."""
    found = of(config, gemm_type)
    return found[bisect_left(found, (rows,))]


@lru_cache(maxsize=64)
def _sizes(
    facts: DeviceFacts, experts: int, gate_up: tuple[int, int], down: tuple[int, int], gemm_type: str, generation: int
) -> tuple[Size, ...]:
    if gemm_type == "indexed":
        bounds = [rows for rows in _steps() if rows <= experts * _MOST_ROWS]
        rows_of = [min(rows / experts, _MOST_ROWS) for rows in bounds]
        blocks = [_shared_block(facts, experts, gate_up, down, rows) for rows in rows_of]
    else:
        rows_of = grouped_sizes(LAYOUTS[gemm_type])
        bounds = [rows * experts for rows in rows_of]
        problems = [grouped.FAMILY.problem(facts, experts, *gate_up, rows, layout=LAYOUTS[gemm_type]) for rows in rows_of]
        blocks = [grouped.FAMILY.schedule(problem).bm for problem in problems]
    bounds[-1] = _UNBOUNDED
    return tuple(map(Size, bounds, blocks, rows_of))


def _steps() -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 ...: the sizes of CUDA graphs that engines capture are among them."""
    yield 1
    power = 2
    while power < _UNBOUNDED:
        yield from (power, power * 3 // 2)
        power *= 2


def _shared_block(facts: DeviceFacts, experts: int, gate_up: tuple[int, int], down: tuple[int, int], rows: float) -> int:
    free = [indexed.FAMILY.problem(facts, experts, *shape, rows) for shape in (gate_up, down)]
    return indexed.shared_block_m(*free)


def problems(facts: DeviceFacts, experts: int, n: int, k: int, gemm_type: str, sizes: tuple[Size, ...]) -> Iterator[object]:
    """All that a forward can ask for a layer's projection: plain rows, no SwiGLU, no routing weights, as Humming's calls are, and
    the kernel that moves its rows.
    """
    yield RowsProblem(facts, "move_rows")
    for size in sizes:
        if gemm_type == "indexed":
            yield indexed.FAMILY.problem(facts, experts, n, k, size.expected_rows, block_m=size.block_m)
        else:
            yield grouped.FAMILY.problem(facts, experts, n, k, size.expected_rows, layout=LAYOUTS[gemm_type])


@lru_cache(maxsize=64)
def _build(index: int, facts: DeviceFacts, experts: int, n: int, k: int, gemm_type: str, sizes: tuple[Size, ...]) -> None:
    """Compile and load, once for all layers of a shape."""
    with torch.cuda.device(index):
        report = api.warm_up(problems(facts, experts, n, k, gemm_type, sizes))
        if report.errors:
            raise report.errors[0][1]
    note(f"{experts} experts, N {n}, K {k}, {gemm_type}: {str(report).splitlines()[0]}")
