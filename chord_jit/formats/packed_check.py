"""Whether a packed folder is what its index says, byte for byte, and what its source says, code for code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from chord_jit.errors import InputError
from chord_jit.formats.checkpoint import Checkpoint
from chord_jit.formats.expert_reader import ExpertReader
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.packed_index import PackedIndex, read_index
from chord_jit.formats.packed_load import digest, map_layer
from chord_jit.formats.packed_write import config_hash
from chord_jit.formats.w4a16 import unpack_expert


@dataclass(frozen=True)
class Checked:
    """What was found: layers and bytes that were read, experts compared with the source, and one line for each problem."""

    layers: int
    bytes: int
    compared: int
    problems: tuple[str, ...]


def verify_packed(
    folder: str | Path,
    *,
    source: str | Path | None = None,
    sample: int | None = 2,
    progress: Callable[[int, int, object], None] | None = None,
) -> Checked:
    """Reads every byte of a packed folder and compares sizes, dtypes, shapes and the SHA-256 of each tensor with its index.

    ``source``: the checkpoint that it was made of: the unpacked codes and scales of ``sample`` experts of each layer (None: of
    all) must be those of the source, bit for bit; which ones is drawn from the number of the layer, equal in every run.
    ``progress(done, total, layer)`` is called after each layer. A layer that is damaged or was not written is a problem of the
    result. Raises ``InputError`` for an index that is none, and for a source that cannot be read or is another model.
    """
    folder, index = Path(folder), read_index(folder)
    problems = [f"layer {layer}: not written" for layer in index.missing]
    numbers, size, compared = sorted(index.layers), 0, 0
    with ExitStack() as stack:
        readers = {}
        if source is not None:
            checkpoint = stack.enter_context(Checkpoint(source))
            readers = _readers(index, checkpoint, folder, source)
            if config_hash(source) != index.packing.config_sha256:
                problems.append("the config.json of the source is not the one that was packed")
        for done, layer in enumerate(numbers):
            try:
                weights = map_layer(folder, index, layer)
            except InputError as error:
                problems.append(f"layer {layer}: {error.rule} ({', '.join(f'{name}={value}' for name, value in error.values.items())})")
                continue
            problems += [f"layer {layer}: {name} is not what was written: its SHA-256 differs" for name in _altered(index, layer, weights)]
            size += weights.gate_up.nbytes + weights.down.nbytes
            if layer in readers:
                chosen = _sample(layer, index.packing.share.experts(index.packing.shape), sample)
                problems += [f"layer {layer}, expert {expert}: {what}" for expert, what in _differences(weights, readers[layer], chosen)]
                compared += len(chosen)
            if progress is not None:
                progress(done + 1, len(numbers), layer)
    return Checked(len(numbers), size, compared, tuple(problems))


def _readers(index: PackedIndex, checkpoint: Checkpoint, folder: Path, source: str | Path) -> dict[int, ExpertReader]:
    packing, shape = index.packing, checkpoint.shape
    sizes = {"source": (shape.hidden, shape.moe_intermediate, shape.experts)}
    sizes["packed"] = (packing.hidden, packing.moe_intermediate, packing.experts)
    if sizes["source"] != sizes["packed"]:
        raise InputError(f"compare {folder} with {source}", "both must be of one model", sizes, "name the checkpoint that was packed")
    if not index.layers:
        return {}
    return checkpoint.readers(checkpoint.layers(sorted(index.layers)), packing.share.experts(shape), packing.share.neurons(shape))


def _altered(index: PackedIndex, layer: int, weights: MoEWeights) -> list[str]:
    tensors = zip(index.layers[layer].items(), (weights.gate_up, weights.down), strict=True)
    return [name for (name, wanted), packed in tensors if digest(packed.data) != wanted]


def _sample(layer: int, experts: range, count: int | None) -> Mapping[int, int]:
    """Global ids of the experts to compare, by their local ones."""
    local = range(len(experts))
    some = local if count is None or count >= len(local) else sorted(random.Random(layer).sample(local, count))
    return {number: experts[number] for number in some}


def _differences(weights: MoEWeights, reader: ExpertReader, chosen: Mapping[int, int]) -> Iterator[tuple[int, str]]:
    """Global expert and what differs, for each matrix that is not the source's."""
    for local, expert in chosen.items():
        gate_up, down = (unpack_expert(packed, local) for packed in (weights.gate_up, weights.down))
        half = weights.gate_up.n // 2
        found = {"gate": tuple(part[:half] for part in gate_up), "up": tuple(part[half:] for part in gate_up), "down": down}
        for proj, (codes, scale) in found.items():
            words, wanted = reader.matrix(expert, proj)
            wrong = int((_words(codes) != words).sum()), int((scale.view(torch.int16) != wanted.view(torch.int16)).sum())
            if any(wrong):
                yield expert, f"{proj} differs from the source in {wrong[0]} words of eight codes and {wrong[1]} scales"


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Codes [N, K] as the words [N, K/8] of a checkpoint."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int32)
