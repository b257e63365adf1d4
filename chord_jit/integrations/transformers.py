"""Experts of Hugging Face transformers on our kernels: ``experts_implementation="chord_jit"`` for BF16 checkpoints.

transformers calls an experts function of its registry as ``fn(experts_module, hidden_states, top_k_index, top_k_weights)``;
releases 5.16 to 5.24 do so alike. ``docs/integrations.md`` shows the use.
"""

from __future__ import annotations

import torch

from chord_jit.errors import CaptureError, InputError
from chord_jit.formats.quantize import quantize_layer
from chord_jit.formats.w4a16 import GROUP
from chord_jit.layers.moe import MoELayer

#: The name in transformers' registry.
NAME = "chord_jit"
_LAYER = "chord_jit_layer"
_PACK = "pack the experts of {}"


def register() -> None:
    """Makes ``experts_implementation="chord_jit"`` known to transformers; again is harmless. Touches no GPU."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)


def prepare(model: torch.nn.Module) -> torch.nn.Module:
    """Packs the experts of every MoE layer of ``model`` to INT4 in groups of 32 where they lie, and returns ``model``.

    ``model``: loaded in BF16 with ``experts_implementation="chord_jit"``. Experts are rounded to nearest
    (``formats.quantize``); everything else stays as it is. Layers go one after another: a packed layer is added, 0.5625 bytes
    a weight, and its BF16 parameters, 2 bytes a weight, are dropped before the next one. So the peak is the BF16 model, one
    packed layer and the quantisation of one expert. A packed model can be moved, but neither trained nor saved as a checkpoint.

    Layers that are packed already stay. A layer that never was is packed at its first call: the same, but later. Raises
    ``InputError`` naming the module: before any layer is packed for experts that are no plain SwiGLU, no BF16, sharded, offloaded,
    or not multiples of 32 in size, and for a model without such layers; at its turn for a layer whose weights are not finite.
    """
    found = {name: module for name, module in model.named_modules() if _is_ours(module)}
    if not found:
        raise InputError(
            f"prepare a {type(model).__name__} for chord_jit", 'it must have MoE layers with experts_implementation="chord_jit"',
            {"experts_implementation": getattr(getattr(model, "config", None), "_experts_implementation", None)},
            'load it with from_pretrained(..., experts_implementation="chord_jit") after register()',
        )
    waiting = {name: module for name, module in found.items() if not hasattr(module, _LAYER)}
    for name, module in waiting.items():
        _check(module, name)
    for name, module in waiting.items():
        _pack(module, name)
    return model


def experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The experts function: ``hidden_states`` BF16 [tokens, hidden], ``top_k_index`` integers and ``top_k_weights`` floats
    [tokens, top_k]; returns BF16 [tokens, hidden]. ``self``: the experts module, packed here if ``prepare`` did not.

    Raises ``InputError`` where a gradient is wanted, what ``prepare`` raises, ``CaptureError`` for a first call within a capture
    (``RuntimeError`` within a full compiled graph), and what ``MoELayer`` raises.
    """
    if torch.is_grad_enabled() and hidden_states.requires_grad:
        raise InputError(
            f"run {type(self).__name__} on packed INT4 experts", "packed experts have no gradient", {"requires_grad": True},
            "call the model under torch.no_grad() or torch.inference_mode()",
        )
    if not hasattr(self, _LAYER):
        _refuse_recording(self, hidden_states)
        _check(self, type(self).__name__)
        _pack(self, type(self).__name__)
    return getattr(self, _LAYER)(hidden_states.contiguous(), top_k_index.contiguous(), top_k_weights.float().contiguous())


def _is_ours(module: torch.nn.Module) -> bool:
    """Whether ``module`` holds experts whose calls transformers hands to this module."""
    wanted = getattr(getattr(module, "config", None), "_experts_implementation", None) == NAME
    return wanted and all(hasattr(module, name) for name in ("has_gate", "is_transposed", "is_concatenated"))


def _pack(module: torch.nn.Module, name: str) -> None:
    with torch.no_grad():
        try:
            weights = quantize_layer(module.gate_up_proj, module.down_proj)
        except InputError as error:
            raise InputError(_PACK.format(name), error.rule, error.values, error.remedy) from error
    layer = MoELayer(weights, top_k=module.config.num_experts_per_tok)
    del module.gate_up_proj, module.down_proj
    setattr(module, _LAYER, layer)


def _check(module: torch.nn.Module, name: str) -> None:
    """Refuses experts that a packed layer would not compute as transformers does: ``InputError``, naming the module."""
    from transformers.activations import SiLUActivation
    from transformers.integrations.moe import _default_apply_gate

    other = {
        "without a gate": not module.has_gate,
        "with biases": module.has_bias,
        "with a norm behind them": getattr(module, "has_post_expert_norm", False),
        "transposed": module.is_transposed,
        "with gate and up interleaved": not module.is_concatenated,
        "with a gate of their own": type(module)._apply_gate is not _default_apply_gate,
        "with another activation than SiLU": not isinstance(getattr(module, "act_fn", None), (torch.nn.SiLU, SiLUActivation)),
        "of which this rank has a share": getattr(module, "_is_expert_parallel", False),
        "whose config has no number num_experts_per_tok": not isinstance(getattr(module.config, "num_experts_per_tok", None), int),
    }
    found = [what for what, true in other.items() if true]
    if found:
        raise InputError(
            _PACK.format(name), "experts must be whole, plain SwiGLU ones, stored [out, in] with gate rows before up rows",
            {"module": type(module).__name__, "experts": "; ".join(found)}, "use another experts_implementation for this model",
        )
    for part in ("gate_up_proj", "down_proj"):
        weight = getattr(module, part)
        if weight.dtype is not torch.bfloat16 or weight.is_meta or hasattr(weight, "device_mesh"):
            raise InputError(
                _PACK.format(name), "weights must be BF16, on a device of this process, and no shards",
                {part: weight.dtype, "device": weight.device, "sharded": hasattr(weight, "device_mesh")},
                "load the model with dtype=torch.bfloat16 on one device, without offloading",
            )
    hidden, neurons = module.down_proj.shape[1:]
    if hidden % GROUP or neurons % GROUP:
        raise InputError(
            _PACK.format(name), "hidden size and neurons must be multiples of 32", {"hidden": hidden, "neurons": neurons},
            "use another experts_implementation for this model",
        )


def _refuse_recording(module: torch.nn.Module, x: torch.Tensor) -> None:
    """Packing is no part of a graph: ``CaptureError``, and within ``torch.compile`` a ``RuntimeError``."""
    if torch.compiler.is_compiling():
        # The only kind whose words the compiler passes on: it cannot trace how ours are made. Without fullgraph it then runs eagerly.
        raise RuntimeError("experts are not packed: call chord_jit.integrations.transformers.prepare(model) before compiling it")
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CaptureError(_PACK.format(type(module).__name__), "packing cannot be captured", {}, "call prepare(model) before the capture")
