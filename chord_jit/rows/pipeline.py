"""A MoE layer's call, from hidden states and routed ids to the combined output: four to six launches, one workspace.

Two ways that rows can take, chosen per call from the rows that an expert can expect (``way_of``):

- ``indexed``: blocks of ids; gate/up gathers its rows by itself, down writes one row an id, routing weights folded in.
- ``contiguous``: rows copied together by expert first, so that tensor copies can feed both products; weights in the combination.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from chord_jit import device, knobs
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError
from chord_jit.families import grouped, indexed
from chord_jit.families.indexed_launch import PRODUCT, ROUTING
from chord_jit.families.refusals import check_aligned
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.routing.indexed.align import whole_model
from chord_jit.rows import kernels, route
from chord_jit.rows.checks import check_matrix, check_values
from chord_jit.rows.combine import combine_rows
from chord_jit.rows.move import move_rows

ASKED = "run a MoE layer"
#: Bytes that a call keeps between its launches, at most; more tokens are taken in slices.
WORKSPACE_BYTES = 1 << 30

#: From here on rows together win: tensor copies feed a product 6-10 % faster than gathering does (``docs/lab.md`` 25), and to copy
#: rows together costs as much as 107 / neurons of the two products. Many rows are needed too: below, tiles are not full either way.
_TOGETHER_ROWS, _TOGETHER_NEURONS = 256, 2048


def run(
    x: torch.Tensor, weights: MoEWeights, topk_ids: torch.Tensor, topk_weights: torch.Tensor, top_k: int, *,
    expert_map: torch.Tensor | None = None, addend: torch.Tensor | None = None, workspace_bytes: int = WORKSPACE_BYTES,
    way: str | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``layers.moe.MoELayer``. ``way``: ``indexed`` or ``contiguous``, None for the one that suits the rows."""
    _check(x, weights, topk_ids, topk_weights, top_k, addend, out)
    if out is None:
        out = torch.empty_like(x)
    tokens = x.shape[0]
    experts = whole_model(weights.gate_up.experts, expert_map)
    step = tokens_at_once(weights, top_k, workspace_bytes)
    for first in range(0, tokens, step):
        given = x, topk_ids, topk_weights, addend, out
        if step < tokens:
            given = (None if one is None else one[first : first + step] for one in given)
        rows = min(step, tokens - first) * top_k / experts
        _CALLS[way or way_of(weights, rows)](weights, expert_map, rows, *given)
    return out


def tokens_at_once(weights: MoEWeights, top_k: int, workspace_bytes: int) -> int:
    """Tokens whose routed rows fit in ``workspace_bytes``, one at least: activated rows and rows of hidden width, BF16. No more than
    can be grouped at once.
    """
    return max(min(workspace_bytes // (2 * top_k * (weights.down.k + weights.down.n)), kernels.MAX_IDS // top_k), 1)


def way_of(weights: MoEWeights, expected_rows: float) -> str:
    """The way for ``expected_rows`` rows an expert of these weights."""
    return way_for(_facts(weights.gate_up.place[0]).arch, weights.down.k, expected_rows)


def way_for(arch: str, neurons: int, expected_rows: float) -> str:
    """The way for experts of ``neurons`` neurons on one architecture: on others than Hopper one kernel serves both alike."""
    together = arch == "sm_90a" and neurons >= _TOGETHER_NEURONS and expected_rows >= _TOGETHER_ROWS
    return "contiguous" if together else "indexed"


def _indexed(
    weights: MoEWeights, expert_map: torch.Tensor | None, expected_rows: float, x: torch.Tensor, topk_ids: torch.Tensor,
    topk_weights: torch.Tensor, addend: torch.Tensor | None, out: torch.Tensor,
) -> None:
    block_m = block_m_for(weights, expected_rows)
    routing, rows = route.blocks(topk_ids, block_m, weights.gate_up.experts, expert_map=expert_map)
    inner, outer = _workspace(weights, topk_ids.numel(), x.device)
    options = {"expected_rows": None, "checked": False}
    indexed.FAMILY.run(x, weights.gate_up, routing, swiglu=True, topk_weights=None, out=inner, after=ROUTING, **options)
    by_row = topk_weights.reshape(-1, 1)
    indexed.FAMILY.run(inner, weights.down, routing.for_down(), swiglu=False, topk_weights=by_row, out=outer, after=PRODUCT, **options)
    combine_rows(outer, rows, out, addend=addend)


def _contiguous(
    weights: MoEWeights, expert_map: torch.Tensor | None, expected_rows: float, x: torch.Tensor, topk_ids: torch.Tensor,
    topk_weights: torch.Tensor, addend: torch.Tensor | None, out: torch.Tensor,
) -> None:
    offsets, rows = route.groups(topk_ids, weights.gate_up.experts, expert_map=expert_map)
    inner, outer = _workspace(weights, topk_ids.numel(), x.device)
    options = {"offsets": offsets, "expected_rows": expected_rows, "checked": False}
    move_rows(x, outer, destinations=rows)
    grouped.FAMILY.contiguous(outer, weights.gate_up, None, swiglu=True, out=inner, **options)
    # The rows of x have been read: down's may take their place.
    grouped.FAMILY.contiguous(inner, weights.down, None, swiglu=False, out=outer, **options)
    combine_rows(outer, rows, out, weights=topk_weights, addend=addend)


_CALLS = {"indexed": _indexed, "contiguous": _contiguous}


def block_m_for(weights: MoEWeights, expected_rows: float) -> int:
    """The block of one routing for both products; memoised until a knob changes."""
    gate_up, down, rows = weights.gate_up, weights.down, indexed.size_for(expected_rows)
    return _block_m(gate_up.place[0], gate_up.experts, (gate_up.n, gate_up.k), (down.n, down.k), rows, knobs.generation)


@lru_cache(maxsize=4096)
def _block_m(index: int, experts: int, gate_up: tuple[int, int], down: tuple[int, int], rows: float, generation: int) -> int:
    facts = _facts(index)
    free = indexed.FAMILY.problem(facts, experts, *gate_up, rows, interleaved=True, swiglu=True)
    return indexed.shared_block_m(free, indexed.FAMILY.problem(facts, experts, *down, rows, weighted=True))


def _facts(index: int) -> DeviceFacts:
    """Of the weights' GPU; of an H200 for those on the CPU, whose calls the references compute."""
    return device.target("sm_90a") if index < 0 else device.facts(index)


def _workspace(weights: MoEWeights, rows: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, neurons] and [rows, hidden], uninitialised, from torch's allocator: another layer's call takes the same memory."""
    inner, outer = rows * weights.down.k, rows * weights.down.n
    whole = torch.empty(inner + outer, dtype=torch.bfloat16, device=where)
    return whole[:inner].view(rows, -1), whole[inner:].view(rows, -1)


def _check(
    x: torch.Tensor, weights: MoEWeights, topk_ids: torch.Tensor, topk_weights: torch.Tensor, top_k: int, addend: torch.Tensor | None,
    out: torch.Tensor | None,
) -> None:
    check_matrix(ASKED, "x", x)
    for packed in (weights.gate_up, weights.down):
        if x.device != packed.device:
            raise InputError(
                ASKED, "x must lie on the device of the weights", {"x": x.device, "weights": packed.device}, "move x, or the layer"
            )
        check_aligned(ASKED, packed)
    if x.shape[1] != weights.gate_up.k:
        raise InputError(
            ASKED, "x must be as wide as the layer's hidden size", {"x": list(x.shape), "hidden": weights.gate_up.k},
            "pass the hidden states of this layer",
        )
    routed = (x.shape[0], top_k)
    check_values(ASKED, "topk_ids", topk_ids, (torch.int32, torch.int64), routed, x)
    check_values(ASKED, "topk_weights", topk_weights, (torch.float32,), routed, x)
    if addend is not None:
        check_matrix(ASKED, "the shared expert's result", addend, x, shape=tuple(x.shape))
    if out is not None:
        check_matrix(ASKED, "out", out, x, shape=tuple(x.shape))
