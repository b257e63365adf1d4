"""MoE layers from a checkpoint to packed weights, expert by expert.

Layout (compressed-tensors, format ``pack-quantized``): for layer L, expert E and each of gate_proj, up_proj, down_proj,
``{prefix}model.layers.L.mlp.experts.E.<proj>.weight_{packed,scale,shape}``; the prefix is empty or ``language_model.``.
Kimi K2-Thinking, K2.5 and K2.6 are named so, and so is Qwen3 MoE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from chord_jit.errors import InputError
from chord_jit.formats.arguments import device_of, numbers
from chord_jit.formats.expert_reader import ExpertReader, root_of
from chord_jit.formats.model_config import ModelShape, read_config, read_model_shape, require_int4_group32
from chord_jit.formats.moe_weights import MoEWeights, allocate_layer
from chord_jit.formats.shards import Shards
from chord_jit.formats.share import Share

__all__ = ["Checkpoint", "ModelShape", "MoEWeights", "load_moe_layer", "load_moe_layers", "read_model_shape"]

#: ``(done, total, (layer, expert))`` after each expert.
Progress = Callable[[int, int, tuple[int, int]], None]


def load_moe_layers(
    path: str | Path,
    *,
    layers: Iterable[int] | None = None,
    ep: int = 1,
    tp: int = 1,
    rank: int = 0,
    device: torch.device | str = "cpu",
    interleave: bool = True,
    progress: Progress | None = None,
) -> dict[int, MoEWeights]:
    """Loads and packs one rank's share of the routed experts of ``layers``: all MoE layers of the model by default.

    ``ep`` ranks share the experts, ``tp`` ranks the neurons of each expert (rows of gate and up, columns of down), in
    contiguous slices; ``rank`` = ep_rank * tp + tp_rank. Of a tensor only the rank's slice is read. ``interleave``: pack
    gate and up of a neuron together, for fused SwiGLU. ``progress(done, total, (layer, expert))`` is called after each expert.

    Shards are mapped and read as safetensors; nothing in the folder is executed. Beyond the result and the mapped files
    memory holds less than two experts; on a GPU, beyond the result, one expert with the scratch of packing it.

    Raises ``InputError``, naming file and tensor, for a scheme other than symmetric INT4 in groups of 32, for missing or
    truncated shards, missing experts, wrong shapes or dtypes, non-finite scales, and shares that are not equal or cut a
    group; ``InputTypeError`` for layers that are no integers, ``UnsupportedDeviceError`` for a GPU that is not there. Config, names
    and shards are checked before the first weight is read.
    """
    share, where = Share(ep, tp, rank), device_of(device)
    with Checkpoint(path) as source:
        wanted, experts, neurons = source.layers(layers), share.experts(source.shape), share.neurons(source.shape)
        return _load(source, wanted, experts, neurons, where, interleave, progress)


def load_moe_layer(
    folder: str | Path,
    layer: int,
    *,
    experts: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    interleave: bool = True,
    progress: Callable[[int, int, int], None] | None = None,
) -> MoEWeights:
    """One layer of ``load_moe_layers``, whole neurons, of any experts.

    ``experts``: global ids, in the order of the local ones; all of them by default. ``progress(done, total, expert)`` is
    called after each expert. Memory and errors are those of ``load_moe_layers``.
    """
    where = device_of(device)
    with Checkpoint(folder) as source:
        source.layers([layer])
        wanted = _local_experts(source.shape, layer, experts)
        told = None if progress is None else lambda done, total, item: progress(done, total, item[1])
        return _load(source, [layer], wanted, Share().neurons(source.shape), where, interleave, told)[layer]


class Checkpoint:
    """A context manager over a folder whose config was read and accepted: ``shape`` of the model, and readers of its layers."""

    def __init__(self, folder: str | Path):
        config = read_config(folder)
        self.shape = read_model_shape(config)
        require_int4_group32(config)
        self._shards = Shards(folder)

    def __enter__(self) -> Checkpoint:
        self._shards.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._shards.__exit__(*exception)

    def layers(self, asked: Iterable[int] | None) -> list[int]:
        """``asked``, or all MoE layers. Raises ``InputTypeError`` or ``InputError`` unless each is a MoE layer, named once."""
        known = self.shape.moe_layers
        wanted, some = numbers("load MoE layers", "layers", known if asked is None else asked), set(known)
        wrong = [layer for layer in wanted if layer not in some]
        if wrong or not wanted or len(set(wanted)) != len(wanted):
            shown = f"{len(known)} from {known[0]} to {known[-1]}" if known else "none"
            raise InputError(
                f"load layer {wrong[0]}" if wrong else "load MoE layers", "the layers must have routed experts, each named once",
                {"layer" if len(wanted) == 1 else "layers": ", ".join(map(str, wanted[:8])), "MoE layers": shown}, "ask for some of them",
            )
        return wanted

    def there(self, layer: int, expert: int) -> bool:
        """Whether the shards of one expert are in the folder: a checkpoint may come, be packed and go shard by shard."""
        root = root_of(self._shards, layer, expert)
        return self._shards.there(ExpertReader(self._shards, root, self.shape, range(0)).names(expert))

    def readers(self, layers: Sequence[int], experts: Sequence[int], neurons: range) -> dict[int, ExpertReader]:
        """One for each layer, once every name is known to be listed, none that speaks of another scheme is, every shard that is
        needed is whole, and the first expert has the sizes of config.json. Raises ``InputError``.
        """
        roots = {layer: root_of(self._shards, layer, experts[0]) for layer in layers}
        readers = {layer: ExpertReader(self._shards, root, self.shape, neurons) for layer, root in roots.items()}
        for reader in readers.values():
            reader.refuse_other_schemes(experts)
            self._shards.require(name for expert in experts for name in reader.names(expert))
        for reader in readers.values():
            reader.check(experts[0])
        return readers


def _load(
    source: Checkpoint, layers: Sequence[int], experts: Sequence[int], neurons: range, device: torch.device, interleave: bool,
    progress: Progress | None,
) -> dict[int, MoEWeights]:
    readers = source.readers(layers, experts, neurons)
    loaded, total = {}, len(layers) * len(experts)
    for number, layer in enumerate(layers):
        loaded[layer] = allocate_layer(len(experts), source.shape.hidden, len(neurons), interleave, device)
        fill(loaded[layer], readers[layer], layer, experts, (number * len(experts), total), progress)
    return loaded


def fill(
    weights: MoEWeights, reader: ExpertReader, layer: int, experts: Sequence[int], counted: tuple[int, int], progress: Progress | None
) -> None:
    """Packs ``experts`` of one layer into their places. ``counted``: experts done before, and in all."""
    before, total = counted
    for local, expert in enumerate(experts):
        reader.pack(weights, local, expert)
        if progress is not None:
            progress(before + local + 1, total, (layer, expert))


def _local_experts(shape: ModelShape, layer: int, experts: Iterable[int] | None) -> list[int]:
    wanted = numbers(f"load experts of layer {layer}", "experts", range(shape.experts) if experts is None else experts)
    wrong = [expert for expert in wanted if not 0 <= expert < shape.experts]
    if wrong or not wanted or len(set(wanted)) != len(wanted):
        raise InputError(
            f"load experts of layer {layer}", "experts must be some of the model's, each once",
            {"asked": len(wanted), "different": len(set(wanted)), "model": shape.experts, "out of range": wrong[:3]},
            "pass the global ids of this rank's experts",
        )
    return wanted
