"""The index of a packed folder: what it holds, of which source, and the checksum of every tensor. ``docs/formats.md`` shows one."""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import InputError
from chord_jit.formats.model_config import ModelShape, read_json
from chord_jit.formats.moe_weights import matrices
from chord_jit.formats.share import Share
from chord_jit.formats.w4a16_layout import LAYOUT_VERSION, data_shape
from chord_jit.jit import files
from chord_jit.version import VERSION

INDEX = "chord-packed.index.json"
FORMAT = "chord-w4a16"
#: The bytes of a file's first tensor begin at a multiple of this: mapped, they are aligned for any use.
ALIGNMENT = 4096
#: Mode of new files: who may read them is for the umask to say.
SHARED = 0o666
#: No count in an index is larger: whatever it says, sizes stay numbers that can be handled.
_MOST = 1 << 24
_LEFTOVER = re.compile(rf"\.({re.escape(INDEX)}|layer-\d{{5,}}\.safetensors)\.[0-9a-f]{{32}}\.partial")
_AGAIN = "pack the checkpoint again with chord pack"


@dataclass(frozen=True)
class Packing:
    """What all files of a folder have in common: sizes of the model, whose share of it, how it is packed, and its source."""

    hidden: int
    moe_intermediate: int
    experts: int
    share: Share
    interleave: bool
    config_sha256: str

    @property
    def shape(self) -> ModelShape:
        """As far as the packed bytes depend on it."""
        return ModelShape(self.hidden, self.moe_intermediate, self.experts, 1, ())

    def tensors(self, layer: int) -> dict[str, dict[str, object]]:
        """Shape, N, K and interleaving of the two tensors of a layer, by their names in its file."""
        local = len(self.share.experts(self.shape))
        return {
            f"layers.{layer}.{name}": {"shape": list(data_shape(local, *matrix)), "n": matrix[0], "k": matrix[1], "interleaved": matrix[2]}
            for name, matrix in matrices(self.hidden, len(self.share.neurons(self.shape)), self.interleave).items()
        }

    def header(self, layer: int) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """The bytes of a layer's safetensors file before the first tensor, and where each tensor begins and ends in the file."""
        entries, at, end = {"__metadata__": {"format": FORMAT, "layout_version": str(LAYOUT_VERSION)}}, {}, 0
        for name, tensor in self.tensors(layer).items():
            start, end = end, end + math.prod(tensor["shape"])
            entries[name] = {"dtype": "U8", "shape": tensor["shape"], "data_offsets": [start, end]}
            at[name] = (start, end)
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        head = len(text).to_bytes(8, "little") + text
        return head, {name: (len(head) + start, len(head) + end) for name, (start, end) in at.items()}

    def size(self, layer: int) -> int:
        """Bytes of a layer's file."""
        return max(end for _, end in self.header(layer)[1].values())

    def facts(self) -> dict[str, object]:
        """The part of the index that is the same for every layer."""
        experts, neurons = self.share.experts(self.shape), self.share.neurons(self.shape)
        return {
            "format": FORMAT, "layout_version": LAYOUT_VERSION,
            "source": {"config_sha256": self.config_sha256},
            "model": {"hidden_size": self.hidden, "moe_intermediate_size": self.moe_intermediate, "experts": self.experts},
            "share": {"ep": self.share.ep, "tp": self.share.tp, "rank": self.share.rank},
            "local": {"experts": [experts.start, experts.stop], "neurons": [neurons.start, neurons.stop]},
            "interleave": self.interleave,
        }  # fmt: skip


@dataclass(frozen=True)
class PackedIndex:
    """``wanted``: the layers that the folder is meant to hold. ``layers``: SHA-256 by tensor name of each one that it does hold."""

    packing: Packing
    wanted: tuple[int, ...]
    layers: Mapping[int, Mapping[str, str]]

    @property
    def missing(self) -> list[int]:
        """Layers that are not written yet."""
        return [layer for layer in self.wanted if layer not in self.layers]

    def entry(self, layer: int) -> dict[str, object]:
        """What the index says of a finished layer."""
        sums = self.layers[layer]
        tensors = {name: {**tensor, "sha256": sums[name]} for name, tensor in self.packing.tensors(layer).items()}
        return {"file": file_of(layer), "bytes": self.packing.size(layer), "tensors": tensors}

    def write(self, folder: Path) -> None:
        """Replaces the index of ``folder`` as a whole; it is on the disk when this returns."""
        content = {**self.packing.facts(), "made_by": f"chord_jit {VERSION}", "wanted": list(self.wanted)}
        content["layers"] = {str(layer): self.entry(layer) for layer in sorted(self.layers)}
        with placed(folder / INDEX) as staging:
            files.write(staging, (json.dumps(content, indent=1) + "\n").encode(), mode=SHARED)


def file_of(layer: int) -> str:
    """Name of a layer's file."""
    return f"layer-{layer:05d}.safetensors"


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """A name of no other process to write a file under, synced by the caller; at the end of the block it replaces ``path``, on
    the disk too. When the block fails nothing of it stays."""
    staging = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        yield staging
        os.replace(staging, path)
    finally:
        with suppress(OSError):
            staging.unlink()
    files.sync_folder(path.parent)


def leftovers(folder: Path) -> list[Path]:
    """What writers that were killed left in ``folder``: regular files under a name of ``placed``, for a file of a packed folder."""
    return [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name) and path.is_file() and not path.is_symlink()]


def read_index(folder: str | Path) -> PackedIndex:
    """The index of a packed folder. Every field is checked against the others, so that none can lead out of the folder or to
    sizes that the packing does not have. Raises ``InputError`` naming the field.
    """
    path = Path(folder) / INDEX
    asked = f"open the packed folder {folder}"
    if not path.is_file():
        ranks = sorted(found.parent.name for found in Path(folder).glob(f"rank-*/{INDEX}"))
        remedy = "pass the folder of one rank" if ranks else "make one with chord pack"
        raise InputError(asked, f"it must hold {INDEX}", {"folders of ranks": ", ".join(ranks[:4]) or "none"}, remedy)
    content = read_json(path)
    _same(asked, content, {"format": FORMAT, "layout_version": LAYOUT_VERSION})
    packing = _packing(asked, content)
    _same(asked, content, packing.facts())
    wanted, layers = content.get("wanted"), content.get("layers")
    if not isinstance(wanted, list) or not wanted or not all(_is_count(layer) for layer in wanted) or wanted != sorted(set(wanted)):
        raise InputError(asked, "wanted must be layer numbers in order, each once", {"wanted": str(wanted)[:80]}, _AGAIN)
    if not isinstance(layers, Mapping) or not set(layers) <= set(map(str, wanted)):
        raise InputError(asked, "layers must be some of those wanted", {"layers": str(layers)[:80]}, _AGAIN)
    sums = {int(number): _sums(asked, number, entry, packing) for number, entry in layers.items()}
    index = PackedIndex(packing, tuple(wanted), sums)
    for number, entry in layers.items():
        _same(f"{asked}, layer {number}", entry, index.entry(int(number)))
    return index


def _packing(asked: str, content: Mapping) -> Packing:
    model, share, source = (content.get(name) if isinstance(content.get(name), Mapping) else {} for name in ("model", "share", "source"))
    counts = {name: model.get(name) for name in ("hidden_size", "moe_intermediate_size", "experts")}
    counts |= {name: share.get(name) for name in ("ep", "tp", "rank")}
    wrong = {name: value for name, value in counts.items() if not _is_count(value) or (value == 0 and name != "rank")}
    if not isinstance(content.get("interleave"), bool):
        wrong["interleave"] = content.get("interleave")
    if not _is_sum(source.get("config_sha256")):
        wrong["config_sha256"] = source.get("config_sha256")
    if wrong:
        raise InputError(asked, "the index must state sizes, share, interleave and the hash of its source", wrong, _AGAIN)
    hidden, inner, experts, *cut = counts.values()
    return Packing(hidden, inner, experts, Share(*cut), content["interleave"], source["config_sha256"])


def _sums(asked: str, layer: str, entry: object, packing: Packing) -> dict[str, str]:
    tensors = entry.get("tensors") if isinstance(entry, Mapping) else None
    sums = {}
    for name in packing.tensors(int(layer)):
        tensor = tensors.get(name) if isinstance(tensors, Mapping) else None
        sums[name] = tensor.get("sha256") if isinstance(tensor, Mapping) else None
        if not _is_sum(sums[name]):
            raise InputError(asked, f"{name} must have a SHA-256 of 64 hex digits", {"sha256": str(sums[name])[:80]}, _AGAIN)
    return sums


def _same(asked: str, found: Mapping, wanted: Mapping) -> None:
    """Refuses fields that are not what they must be, by name."""
    values = dict(_differences(found, wanted))
    if values:
        raise InputError(asked, "the index must say what this version of the packing implies", values, _AGAIN)


def _differences(found: object, wanted: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Name and values of what is in ``wanted`` and otherwise in ``found``, down to single fields."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            yield from _differences(found.get(key), value, f"{name}.{key}" if name else key)
    elif found != wanted:
        yield name, f"{str(found)[:80]} (wanted {wanted})"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_sum(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
