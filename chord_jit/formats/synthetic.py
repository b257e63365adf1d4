"""A small MoE checkpoint in Kimi K2's directory layout, compressed by the compressed-tensors library itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from chord_jit.errors import InputError, ToolchainError
from chord_jit.formats.w4a16 import GROUP

#: Modules that such a checkpoint leaves unquantised.
_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def write_checkpoint(
    folder: str | Path, *, hidden: int, intermediate: int, experts: int, top_k: int, layers: int, seed: int, shards: int
) -> None:
    """Writes the routed experts of ``layers`` MoE layers, numbered from 1 as in Kimi K2, where layer 0 is dense.

    Weights are drawn from ``seed`` as BF16, deviation ``1 / sqrt(K)``, and quantised to symmetric INT4 in groups of 32
    with absmax scales. ``hidden`` and ``intermediate`` are multiples of 32. Files: config.json, then ``shards``
    safetensors files with an index, or one ``model.safetensors``. Attention, router and dense layers are not written.

    Raises ``InputError`` for impossible sizes and for a folder that is not empty (nothing is ever overwritten) or cannot be
    written, and ``ToolchainError`` when compressed-tensors is not installed.
    """
    _check(hidden, intermediate, experts, top_k, layers, seed, shards)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError("write a checkpoint", "the folder must be empty", {"folder": folder}, "name a new folder")
        _write(folder, hidden, intermediate, experts, top_k, layers, seed, shards)
    except (OSError, SafetensorError) as error:
        raise InputError(
            "write a checkpoint", "the folder must be one that can be made and written", {"folder": folder, "error": error},
            "name a new folder",
        ) from None  # fmt: skip


def _write(folder: Path, hidden: int, intermediate: int, experts: int, top_k: int, layers: int, seed: int, shards: int) -> None:
    compressor, scheme, quantization = _compressor()
    generator = torch.Generator().manual_seed(seed)
    modules = [
        (f"model.layers.{layer}.mlp.experts.{expert}.{proj}_proj", (hidden, intermediate) if proj == "down" else (intermediate, hidden))
        for layer in range(1, layers + 1)
        for expert in range(experts)
        for proj in ("gate", "up", "down")
    ]
    weight_map, total = {}, 0
    for file, part in _split(modules, shards):
        tensors = {}
        for name, (n, k) in part:
            weight = (torch.randn(n, k, generator=generator) / k**0.5).bfloat16()
            state = compressor.compress({"weight": weight, "weight_scale": _scale(weight, scheme)}, scheme)
            tensors |= {f"{name}.{key}": value.contiguous() for key, value in state.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_act": "silu", "torch_dtype": "bfloat16",
        "hidden_size": hidden, "moe_intermediate_size": intermediate, "n_routed_experts": experts, "num_experts_per_tok": top_k,
        "num_hidden_layers": layers + 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "quantization_config": quantization,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _check(hidden: int, intermediate: int, experts: int, top_k: int, layers: int, seed: int, shards: int) -> None:
    sizes = {"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k, "layers": layers, "shards": shards}
    right = min(sizes.values()) > 0 and hidden % GROUP == 0 and intermediate % GROUP == 0 and top_k <= experts
    if not right or shards > 3 * experts * layers:
        raise InputError(
            "write a checkpoint", "sizes must be positive, hidden and intermediate multiples of 32, top_k at most experts, "
            "shards at most the number of matrices", sizes, "choose other sizes",
        )
    if not -(2**63) <= seed < 2**64:
        raise InputError("write a checkpoint", "the seed must fit 64 bits", {"seed": seed}, "choose a smaller one")


def _compressor() -> tuple:
    """The library's compressor, the scheme, and the quantization_config that describes it."""
    try:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    except ImportError as error:
        raise ToolchainError(
            "write a checkpoint", "the compressed-tensors library must be installed", {"error": error},
            "pip install '.[demo]', in the checkout of chord_jit",
        ) from error  # fmt: skip
    weights = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=True, dynamic=False, observer="minmax")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format="pack-quantized", quantization_status="compressed", ignore=_IGNORE
    )
    return BaseCompressor.get_value_from_registry("pack-quantized"), scheme, config.model_dump(mode="json")


def _scale(weight: torch.Tensor, scheme) -> torch.Tensor:
    """BF16 absmax scales [N, K/32] as the library chooses them."""
    from compressed_tensors.quantization.utils import calculate_qparams

    groups = weight.unflatten(1, (-1, GROUP))
    return calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)[0]


def _split(modules: list, shards: int) -> Iterator[tuple[str, list]]:
    """File names with their share of the matrices, in order; shares differ by one at most, so an expert may be cut."""
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        yield name, modules[shard * len(modules) // shards : (shard + 1) * len(modules) // shards]
