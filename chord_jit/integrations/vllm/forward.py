"""The calls of a forward: Humming's functions for layers of ours. Nothing here compiles, waits for the device or keeps state."""

from __future__ import annotations

import torch

from chord_jit import api
from chord_jit.errors import InputError
from chord_jit.integrations.vllm import sizes
from chord_jit.integrations.vllm.layer import ServedLayer
from chord_jit.routing.indexed import IndexedRouting
from chord_jit.rows.move import move_rows

#: The only activation that we have, as vLLM spells it for Humming's compiler.
_SILU_AND_MUL = ("binary_split", "(a/(1.f+expf(-a)))*b")


def humming_forward(
    config: ServedLayer, inputs: torch.Tensor, weight: torch.Tensor, weight_scale: object = None, zero_point: object = None,
    bias: object = None, weight_scale_2: object = None, outputs: torch.Tensor | None = None, input_scale: object = None,
    input_scale_2: object = None, sorted_ids: torch.Tensor | None = None, expert_ids: torch.Tensor | None = None,
    num_tokens_padded: torch.Tensor | None = None, expert_layout: torch.Tensor | None = None, locks: object = None, top_k: int = 1,
    valid_shape_m: int = 0, compute_config: object = None, tuning_config: object = None, hadamard_block_size: object = None,
    use_pdl: object = None,
) -> torch.Tensor:
    """One projection: rows of ``inputs`` BF16 with the experts of ``weight``, our packed bytes; returns ``outputs``.

    Indexed with ``sorted_ids``; else ``expert_layout`` says how rows lie: int64 [E + 1] exact offsets, or int32 [E] counts of the
    rows in use of each expert's equal share. ``valid_shape_m``: vLLM's estimate of routed rows on this rank, by which it chose the
    block size of ``sorted_ids``. The scale is part of ``weight``; the other arguments are Humming's, and settle nothing here.
    Raises as ``chord_jit.indexed``, ``contiguous`` and ``masked`` do.
    """
    packed = config.packed(weight)
    if sorted_ids is not None:
        size = sizes.at(config, "indexed", valid_shape_m)
        rows = inputs.shape[0] * top_k
        routing = IndexedRouting(sorted_ids, expert_ids, num_tokens_padded, top_k, size.block_m, rows, config.num_experts)
        return api.indexed(inputs, packed, routing, expected_rows=size.expected_rows, out=outputs)
    if expert_layout is None:
        raise InputError(
            "run a MoE layer of vLLM", "rows must be told to experts, by sorted_ids or expert_layout",
            {"experts": config.num_experts, "rows": inputs.shape[0]}, "pass what the layer's GEMM type asks for",
        )
    if expert_layout.dtype is torch.int64:
        size = sizes.at(config, "grouped_contiguous", valid_shape_m)
        return api.contiguous(inputs, packed, offsets=expert_layout, expected_rows=size.expected_rows, out=outputs)
    size = sizes.at(config, "grouped_masked", valid_shape_m)
    return api.masked(inputs, packed, expert_layout, int(size.expected_rows), out=outputs)


def may_process_input(
    config: ServedLayer, inputs: torch.Tensor, *, outputs: torch.Tensor | None = None, group_scales: object = None,
    token_scales: object = None, activation_type: str = "none", activation_impl: str | None = None,
    hadamard_block_size: int | None = None, layout: str = "normal", expert_tokens: torch.Tensor | None = None,
    scatter_idx: torch.Tensor | None = None, num_valid_tokens: torch.Tensor | None = None, zero_invalid: bool = False,
    m_major_scale: bool = False, use_pdl: object = None,
) -> tuple[torch.Tensor, None, None]:
    """What a projection reads: ``inputs`` [rows, C] themselves, or in ``outputs`` [rows, C] or [rows, C / 2] what was asked for.

    SiLU(gate) * up with ``activation_type``; ``layout`` "scatter": row r goes to the rows ``scatter_idx[r]``, int32 [rows, d], where
    negative ones and those from ``num_valid_tokens``, int64 [1], on are left out; "grouped_mask": the first ``expert_tokens[e]`` rows of
    each expert's share; "normal" with ``num_valid_tokens``: the rows before it. Rows that are left out keep what they held. Raises
    ``InputError`` for another activation, or for what only layers have that Humming keeps.
    """
    activate = activation_type != "none"
    if activate and (activation_type, "".join((activation_impl or "").split())) != _SILU_AND_MUL:
        raise InputError(
            "run the activation of a MoE layer of vLLM", "chord_jit has SiLU(gate) * up alone",
            {"activation_type": activation_type, "activation_impl": activation_impl}, "set CHORD_VLLM=0 to serve this model with Humming",
        )
    if (hadamard_block_size or 0) > 1 or zero_invalid:
        raise InputError(
            "prepare the input of a MoE layer of vLLM", "rows are neither transformed nor zeroed",
            {"hadamard_block_size": hadamard_block_size, "zero_invalid": zero_invalid}, "set CHORD_VLLM=0 to serve this model with Humming",
        )
    scatter = layout == "scatter"
    if not activate and not scatter:
        return inputs, None, None
    rows, columns = (scatter_idx.numel() if scatter else inputs.shape[0]), inputs.shape[1] // (2 if activate else 1)
    if outputs is None:
        outputs = torch.empty(rows, columns, dtype=inputs.dtype, device=inputs.device)
    move_rows(
        inputs, outputs, activate=activate, destinations=scatter_idx if scatter else None, limit=num_valid_tokens,
        counts=expert_tokens if layout == "grouped_mask" else None,
    )  # fmt: skip
    return outputs, None, None


def may_quant_input(
    config: ServedLayer, inputs: torch.Tensor, input_scale: object = None, quanted_input: object = None, use_pdl: object = None
) -> tuple[torch.Tensor, None]:
    """What vLLM 0.30 asks in place of ``may_process_input``: BF16 activations go as they are."""
    return inputs, None
