"""One MoE layer from a Kimi K2 checkpoint to packed weights, expert by expert.

Layout (compressed-tensors, format ``pack-quantized``): for layer L, expert E and each of gate_proj, up_proj, down_proj,
``{prefix}model.layers.L.mlp.experts.E.<proj>.weight_{packed,scale,shape}``; the prefix is empty or ``language_model.``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from chord_jit.errors import InputError
from chord_jit.formats.model_config import ModelShape, read_config, read_model_shape, require_int4_group32
from chord_jit.formats.shards import Shards
from chord_jit.formats.w4a16 import GROUP, PackedW4A16, allocate, pack_expert

__all__ = ["ModelShape", "MoEWeights", "load_moe_layer", "read_model_shape"]

_PREFIXES = ("", "language_model.")


@dataclass(frozen=True)
class MoEWeights:
    """Packed weights of one layer's local experts. ``gate_up``: N = 2 x moe_intermediate, K = hidden. ``down``: N = hidden,
    K = moe_intermediate.
    """

    gate_up: PackedW4A16
    down: PackedW4A16


def load_moe_layer(
    folder: str | Path,
    layer: int,
    *,
    experts: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    interleave: bool = True,
    progress: Callable[[int, int, int], None] | None = None,
) -> MoEWeights:
    """Loads and packs the routed experts of one layer.

    ``experts``: global ids, in the order of the local ones (expert parallelism); all of them by default. ``interleave``:
    pack gate and up of a neuron together, for fused SwiGLU. ``progress(done, total, expert)`` is called after each expert.
    Beyond the result, memory holds one expert; shards are mapped and read as safetensors, nothing in the folder is executed.

    Raises ``InputError``, naming file and tensor, for a scheme other than symmetric INT4 in groups of 32, for missing or
    truncated shards, missing experts, wrong shapes or dtypes, and non-finite scales. Names and shards are checked before
    the first tensor is read.
    """
    config = read_config(folder)
    shape = read_model_shape(config)
    require_int4_group32(config)
    wanted = _local_experts(shape, layer, experts)
    with Shards(folder) as shards:
        reader = _Reader(shards, _root(shards, layer, wanted[0]), shape)
        shards.require(name for expert in wanted for name in reader.names(expert))
        weights = MoEWeights(
            gate_up=allocate(len(wanted), 2 * shape.moe_intermediate, shape.hidden, interleave, device),
            down=allocate(len(wanted), shape.hidden, shape.moe_intermediate, False, device),
        )
        for local, expert in enumerate(wanted):
            reader.pack(weights, local, expert)
            if progress is not None:
                progress(local + 1, len(wanted), expert)
    return weights


@dataclass(frozen=True)
class _Reader:
    shards: Shards
    root: str
    shape: ModelShape

    def names(self, expert: int) -> list[str]:
        """Every tensor that one expert needs."""
        return [
            f"{self.root}.{expert}.{proj}_proj.weight_{part}" for proj in ("gate", "up", "down") for part in ("packed", "scale", "shape")
        ]

    def pack(self, weights: MoEWeights, local: int, expert: int) -> None:
        hidden, inner = self.shape.hidden, self.shape.moe_intermediate
        gate, up, down = (
            self._matrix(f"{self.root}.{expert}.{proj}_proj.weight", n, k, weights.down.device)
            for proj, n, k in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner))
        )
        with self._named(expert, "gate", "up"):
            pack_expert(weights.gate_up, local, *gate, up=up[0], up_scale=up[1])
        with self._named(expert, "down"):
            pack_expert(weights.down, local, *down)

    @contextmanager
    def _named(self, expert: int, *projections: str) -> Iterator[None]:
        """Adds the tensors and their files to what packing has to say about them."""
        try:
            yield
        except InputError as error:
            names = [f"{self.root}.{expert}.{proj}_proj.weight_scale" for proj in projections]
            files = ", ".join(sorted({str(self.shards.path(name)) for name in names}))
            raise InputError(f"load {' and '.join(names)}", error.rule, {**error.values, "file": files}, error.remedy) from None

    def _matrix(self, name: str, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Words int32 [1, N, K/8] and scales BF16 [1, N, K/32] of one projection, on ``device``."""
        for extra in ("zero_point", "g_idx"):
            if f"{name}_{extra}" in self.shards:
                raise InputError(
                    f"load {name}", "the scheme must be symmetric and without activation order",
                    {"file": self.shards.path(f"{name}_{extra}"), "tensor": f"{name}_{extra}"}, "use a checkpoint without it",
                )
        declared = self.shards.tensor(f"{name}_shape", (torch.int64, torch.int32), (2,)).tolist()
        if declared != [n, k]:
            raise InputError(
                f"load {name}", "weight_shape must be [N, K] as config.json implies",
                {"file": self.shards.path(f"{name}_shape"), "weight_shape": declared, "wanted": [n, k]},
                "use the config.json that belongs to these shards",
            )
        words = self.shards.tensor(f"{name}_packed", (torch.int32,), (n, k // 8))
        scale = self.shards.tensor(f"{name}_scale", (torch.bfloat16,), (n, k // GROUP))
        return words.to(device).unsqueeze(0), scale.to(device).unsqueeze(0)


def _root(shards: Shards, layer: int, expert: int) -> str:
    """``{prefix}model.layers.L.mlp.experts`` with the prefix that this checkpoint uses."""
    roots = [f"{prefix}model.layers.{layer}.mlp.experts" for prefix in _PREFIXES]
    return next((root for root in roots if f"{root}.{expert}.gate_proj.weight_packed" in shards), roots[0])


def _local_experts(shape: ModelShape, layer: int, experts: Iterable[int] | None) -> list[int]:
    if layer not in shape.moe_layers:
        known = f"{len(shape.moe_layers)} from {shape.moe_layers[0]} to {shape.moe_layers[-1]}" if shape.moe_layers else "none"
        raise InputError(
            f"load layer {layer}", "the layer must have routed experts", {"layer": layer, "MoE layers": known}, "ask for one of them"
        )
    wanted = list(range(shape.experts) if experts is None else experts)
    wrong = [expert for expert in wanted if not 0 <= expert < shape.experts]
    if wrong or not wanted or len(set(wanted)) != len(wanted):
        raise InputError(
            f"load experts of layer {layer}", "experts must be some of the model's, each once",
            {"asked": len(wanted), "different": len(set(wanted)), "model": shape.experts, "out of range": wrong[:3]},
            "pass the global ids of this rank's experts",
        )
    return wanted
