"""Writes a tiny checkpoint by hand, from known codes, without the library that the loader is meant to agree with."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.unit.formats.w4a16_figure import draw, words_of

HIDDEN, INNER, EXPERTS, LAYER = 96, 64, 4, 1
PROJECTIONS = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False, "actorder": None}


def config(**weights) -> dict:
    """config.json of the tiny model; ``weights`` change the quantisation's arguments."""
    group = {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": WEIGHTS | weights}
    return {
        "hidden_size": HIDDEN, "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2,
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group},
        },
    }


def matrices(seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes [E, N, K] and scales [E, N, K/32] by projection."""
    return {name: draw(seed + index, EXPERTS, n, k) for index, (name, (n, k)) in enumerate(PROJECTIONS.items())}


def tensors_of(known: dict, prefix: str = "", shape_dtype: torch.dtype = torch.int64) -> dict[str, torch.Tensor]:
    """The tensors of layer 1 under their checkpoint names."""
    found = {}
    for projection, (codes, scale) in known.items():
        for expert in range(EXPERTS):
            name = f"{prefix}model.layers.{LAYER}.mlp.experts.{expert}.{projection}_proj.weight"
            found[f"{name}_packed"] = words_of(codes[expert])
            found[f"{name}_scale"] = scale[expert].clone()
            found[f"{name}_shape"] = torch.tensor(codes[expert].shape, dtype=shape_dtype)
    return found


def write(folder: Path, content: dict, tensors: dict[str, torch.Tensor], shards: int = 3) -> None:
    """Config, shards in round robin (so that every expert is spread over all of them), and the index; or one file."""
    (folder / "config.json").write_text(json.dumps(content))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
