"""The calls as torch custom ops, which ``torch.compile`` keeps whole: ``chord_jit::indexed``, ``contiguous``, ``masked``, ``moe``.

Each has a variant with ``_out`` behind its name that writes into its last argument and returns nothing. An op takes the
tensors and numbers that a ``PackedW4A16`` and an ``IndexedRouting`` hold, makes the objects again and calls the family as the
eager call does: the same checks when it runs, the same errors, the same bits, rows that nobody names uninitialised. On the CPU
it computes only with ``CHORD_BACKEND=reference``. No gradient is defined.

Fake kernels know shapes alone and refuse nothing, so a call that breaks a rule raises its own error when the compiled function
runs. Sizes may be symbolic, so graphs serve any token count.

``mode="reduce-overhead"`` copies every input of a graph that it does not know to stay in place, weights too: tell it with
``torch._dynamo.mark_static_address(weight.data)`` before the function is compiled.

Importing this module registers the ops; ``api`` does so while a call is being compiled, eager calls never. A program that was
exported needs ``import chord_jit.ops`` where it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from chord_jit.families import grouped as _grouped
from chord_jit.families import indexed as _indexed
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.w4a16_layout import PackedW4A16, require_layout
from chord_jit.routing.indexed import IndexedRouting, check_trusted
from chord_jit.rows import pipeline

#: What a weight holds; ``reserved`` is its mode, which torch's own functions have an argument of that name for.
_WEIGHT = "Tensor weight, SymInt n, SymInt k, SymInt experts, bool interleaved, int layout_version, str? reserved"
_ROUTING = (
    "Tensor sorted_ids, Tensor expert_ids, Tensor num_tokens_padded, SymInt top_k, SymInt block_m, SymInt routed_rows, "
    "SymInt routed_experts, SymInt global_experts"
)
_LIBRARY = torch.library.Library("chord_jit", "DEF")


# -- from the objects of a call to the arguments of its op --------------------------------------------------------------
def indexed(
    x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, *, swiglu: bool, topk_weights: torch.Tensor | None,
    expected_rows: float | None, checked: bool, out: torch.Tensor | None,
) -> torch.Tensor:
    """``api.indexed`` through its op."""
    given = (x, *_weight_fields(weight), *_routing_fields(routing, x), swiglu, topk_weights, expected_rows, checked)
    return _call("indexed", given, out)


def contiguous(
    x: torch.Tensor, weight: PackedW4A16, m_indices: torch.Tensor | None, *, offsets: torch.Tensor | None, swiglu: bool,
    expected_rows: float | None, checked: bool, out: torch.Tensor | None,
) -> torch.Tensor:
    """``api.contiguous`` through its op."""
    return _call("contiguous", (x, *_weight_fields(weight), m_indices, offsets, swiglu, expected_rows, checked), out)


def masked(
    x: torch.Tensor, weight: PackedW4A16, masked_m: torch.Tensor, expected_m: int, *, swiglu: bool, checked: bool,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """``api.masked`` through its op."""
    return _call("masked", (x, *_weight_fields(weight), masked_m, expected_m, swiglu, checked), out)


def moe(
    x: torch.Tensor, weights: MoEWeights, topk_ids: torch.Tensor, topk_weights: torch.Tensor, top_k: int, expert_map: torch.Tensor | None,
    addend: torch.Tensor | None, workspace_bytes: int, out: torch.Tensor | None,
) -> torch.Tensor:
    """``layers.moe.MoELayer`` through its op."""
    gate_up = weights.gate_up
    held = gate_up.data, weights.down.data, gate_up.n, gate_up.k, gate_up.experts
    return _call("moe", (x, *held, topk_ids, topk_weights, top_k, expert_map, addend, workspace_bytes), out)


def _weight_fields(weight: PackedW4A16) -> tuple:
    if not isinstance(weight, PackedW4A16):
        require_layout(weight)
    return weight.data, weight.n, weight.k, weight.experts, weight.interleaved, weight.layout_version, weight.mode


def _routing_fields(routing: IndexedRouting, x: torch.Tensor) -> tuple:
    if not isinstance(routing, IndexedRouting):
        check_trusted(routing, rows=0, experts=0, device=x.device)
    return (
        routing.sorted_ids, routing.expert_ids, routing.num_tokens_padded, routing.top_k, routing.block_m, routing.routed_rows,
        routing.experts, routing.global_experts,
    )  # fmt: skip


def _call(name: str, given: tuple, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return getattr(torch.ops.chord_jit, name)(*given)
    getattr(torch.ops.chord_jit, f"{name}_out")(*given, out)
    return out


# -- kernels: the family's own call -------------------------------------------------------------------------------------
def _indexed_kernel(
    x, weight, n, k, experts, interleaved, layout_version, reserved,
    sorted_ids, expert_ids, num_tokens_padded, top_k, block_m, routed_rows, routed_experts, global_experts,
    swiglu, topk_weights, expected_rows, checked, out=None,
):  # fmt: skip
    packed = PackedW4A16(weight, n, k, experts, interleaved, layout_version, reserved)
    routing = IndexedRouting(sorted_ids, expert_ids, num_tokens_padded, top_k, block_m, routed_rows, routed_experts, global_experts)
    return _indexed.FAMILY.run(
        x, packed, routing, swiglu=swiglu, topk_weights=topk_weights, expected_rows=expected_rows, checked=checked, out=out
    )


def _contiguous_kernel(
    x, weight, n, k, experts, interleaved, layout_version, reserved, m_indices, offsets, swiglu, expected_rows, checked, out=None,
):  # fmt: skip
    packed = PackedW4A16(weight, n, k, experts, interleaved, layout_version, reserved)
    return _grouped.FAMILY.contiguous(
        x, packed, m_indices, offsets=offsets, swiglu=swiglu, expected_rows=expected_rows, checked=checked, out=out
    )


def _masked_kernel(
    x, weight, n, k, experts, interleaved, layout_version, reserved, masked_m, expected_m, swiglu, checked, out=None,
):  # fmt: skip
    packed = PackedW4A16(weight, n, k, experts, interleaved, layout_version, reserved)
    return _grouped.FAMILY.masked(x, packed, masked_m, expected_m, swiglu=swiglu, checked=checked, out=out)


def _moe_kernel(x, gate_up, down, n, k, experts, topk_ids, topk_weights, top_k, expert_map, addend, workspace_bytes, out=None):
    weights = MoEWeights(PackedW4A16(gate_up, n, k, experts, True), PackedW4A16(down, k, n // 2, experts, False))
    return pipeline.run(
        x, weights, topk_ids, topk_weights, top_k, expert_map=expert_map, addend=addend, workspace_bytes=workspace_bytes, out=out
    )


# -- fake kernels: what the result looks like ---------------------------------------------------------------------------
def _indexed_fake(
    x, weight, n, k, experts, interleaved, layout_version, reserved,
    sorted_ids, expert_ids, num_tokens_padded, top_k, block_m, routed_rows, routed_experts, global_experts,
    swiglu, topk_weights, expected_rows, checked,
):  # fmt: skip
    return _result(x, top_k, n, swiglu)


def _contiguous_fake(x, weight, n, k, experts, interleaved, layout_version, reserved, m_indices, offsets, swiglu, expected_rows, checked):
    return _result(x, 1, n, swiglu)


def _masked_fake(x, weight, n, k, experts, interleaved, layout_version, reserved, masked_m, expected_m, swiglu, checked):
    return _result(x, 1, n, swiglu)


def _moe_fake(x, gate_up, down, n, k, experts, topk_ids, topk_weights, top_k, expert_map, addend, workspace_bytes):
    return torch.empty_like(x)


def _result(x: torch.Tensor, top_k: int, n: int, swiglu: bool) -> torch.Tensor:
    return x.new_empty((prod(x.shape[:-1]) * top_k, n // 2 if swiglu else n), dtype=torch.bfloat16)


# -- registration -------------------------------------------------------------------------------------------------------
def _register(name: str, arguments: str, kernel: Callable, fake: Callable) -> None:
    """``name`` and ``name_out``. The layout of each argument is part of the call, so a compiler may not change it."""
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    variants = (
        (name, f"({arguments}) -> Tensor", kernel, fake),
        (f"{name}_out", f"({arguments}, Tensor(a!) out) -> ()", lambda *given: _drop(kernel(*given)), lambda *given: None),
    )
    for op, schema, real, shape in variants:
        _LIBRARY.define(op + schema, tags=tags)
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(op, real, device)
        _LIBRARY.impl(op, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"chord_jit::{op}", shape, lib=_LIBRARY)


def _drop(result: torch.Tensor) -> None:
    """An op that writes into an argument returns nothing."""


_register(
    "indexed", f"Tensor x, {_WEIGHT}, {_ROUTING}, bool swiglu, Tensor? topk_weights, Scalar? expected_rows, bool checked",
    _indexed_kernel, _indexed_fake,
)  # fmt: skip
_register(
    "contiguous", f"Tensor x, {_WEIGHT}, Tensor? m_indices, Tensor? offsets, bool swiglu, Scalar? expected_rows, bool checked",
    _contiguous_kernel, _contiguous_fake,
)  # fmt: skip
_register(
    "masked", f"Tensor x, {_WEIGHT}, Tensor masked_m, SymInt expected_m, bool swiglu, bool checked", _masked_kernel, _masked_fake
)
_register(
    "moe",
    "Tensor x, Tensor gate_up, Tensor down, SymInt n, SymInt k, SymInt experts, Tensor topk_ids, Tensor topk_weights, SymInt top_k, "
    "Tensor? expert_map, Tensor? addend, SymInt workspace_bytes",
    _moe_kernel, _moe_fake,
)  # fmt: skip
