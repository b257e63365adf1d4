"""Whether a packed folder is what its index says, byte for byte, and what its source says, code for code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import InputError
from chord_jit.formats.checkpoint import Checkpoint
from chord_jit.formats.expert_reader import ExpertReader
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.packed_compare import differences
from chord_jit.formats.packed_compare import sample as drawn
from chord_jit.formats.packed_index import PackedIndex, read_index
from chord_jit.formats.packed_load import digest, map_layer
from chord_jit.formats.packed_write import config_hash


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
                chosen = drawn(layer, index.packing.share.experts(index.packing.shape), sample)
                problems += [f"layer {layer}, expert {expert}: {what}" for expert, what in differences(weights, readers[layer], chosen)]
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
