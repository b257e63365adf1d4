"""Tiny checkpoints of several MoE layers, and what one rank's share of them packs to."""

from __future__ import annotations

from pathlib import Path

import torch

from chord_jit.formats.checkpoint import MoEWeights
from chord_jit.formats.w4a16 import pack_w4a16
from tests.unit.formats import tiny_checkpoint as tiny
from tests.unit.formats.w4a16_figure import draw, words_of

#: Codes and scales by layer, then by projection.
Known = dict[int, dict[str, tuple[torch.Tensor, torch.Tensor]]]


def config(layers: int, experts: int, hidden: int, inner: int, **fields) -> dict:
    """config.json in Kimi K2's naming, layer 0 dense; ``fields`` change it."""
    sizes = {"hidden_size": hidden, "moe_intermediate_size": inner, "n_routed_experts": experts, "num_hidden_layers": layers + 1}
    return {name: value for name, value in (tiny.config() | sizes | fields).items() if value is not None}


def write(folder: Path, seed: int, layers: list[int], content: dict, prefix: str = "", shards: int = 3) -> Known:
    """A checkpoint whose tensors are those of ``layers``."""
    known, tensors = {}, {}
    experts = content.get("num_experts", content.get("n_routed_experts"))
    hidden, inner = content["hidden_size"], content["moe_intermediate_size"]
    for layer in layers:
        known[layer] = {}
        for number, (proj, (n, k)) in enumerate({"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items()):
            codes, scale = known[layer][proj] = draw(seed + 10 * layer + number, experts, n, k)
            words = words_of(codes)
            for expert in range(experts):
                name = f"{prefix}model.layers.{layer}.mlp.experts.{expert}.{proj}_proj.weight"
                tensors |= {f"{name}_packed": words[expert].clone(), f"{name}_scale": scale[expert].clone()}
                tensors[f"{name}_shape"] = torch.tensor([n, k])
    folder.mkdir(exist_ok=True)
    tiny.write(folder, content, tensors, shards)
    return known


def share_of(known: dict, experts: slice, neurons: slice, interleave: bool = True) -> MoEWeights:
    """One layer's share, packed by ``pack_w4a16`` from cut codes and scales."""
    groups = slice(neurons.start // 32, neurons.stop // 32)
    gate, up = (tuple(tensor[experts, neurons] for tensor in known[proj]) for proj in ("gate", "up"))
    codes, scale = known["down"]
    return MoEWeights(
        gate_up=pack_w4a16(*gate, up=up[0], up_scale=up[1], interleave=interleave),
        down=pack_w4a16(codes[experts, :, neurons], scale[experts, :, groups]),
    )


def same(one: MoEWeights, other: MoEWeights) -> bool:
    """Whether two layers have the same description and the same bytes."""
    pairs = ((one.gate_up, other.gate_up), (one.down, other.down))
    return all(repr(a) == repr(b) and torch.equal(a.data, b.data) for a, b in pairs)
