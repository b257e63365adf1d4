"""Layers of a packed folder, mapped as they lie on the disk: nothing is converted, nothing is executed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from chord_jit.errors import InputError
from chord_jit.formats.arguments import device_of, numbers
from chord_jit.formats.moe_weights import MoEWeights, matrices
from chord_jit.formats.packed_index import PackedIndex, Packing, file_of, read_index
from chord_jit.formats.w4a16 import PackedW4A16

_AGAIN = "remove this file and run chord pack again: it writes what is missing"


def load_packed(path: str | Path, layers: Iterable[int] | None = None, device: torch.device | str = "cpu") -> dict[int, MoEWeights]:
    """Layers of a folder that ``chord pack`` wrote, by number; all of them by default. The folder says which rank's they are.

    On the CPU a tensor is a private view of the mapped file: pages are read when they are touched, and what is written to it
    never reaches the file. To a GPU each tensor is copied once. Index, sizes, dtypes and shapes are checked, checksums
    are not: ``chord verify`` reads every byte. A file that is cut short while it is mapped ends the process.

    Raises ``InputError`` naming file and rule for a folder that is not whole, of another layout version, or whose index leads
    out of it, and for layers that it does not hold; ``InputTypeError`` for layers that are no integers, ``UnsupportedDeviceError``
    for a GPU that is not there.
    """
    where, index = device_of(device), read_index(path)
    wanted = numbers(f"load layers of {path}", "layers", index.wanted if layers is None else layers)
    absent = [layer for layer in wanted if layer not in index.layers]
    if absent or not wanted or len(set(wanted)) != len(wanted):
        raise InputError(
            f"load layers of {path}", "they must be there, each named once",
            {"asked": len(wanted), "not there": absent[:8], "there": len(index.layers), "not written yet": index.missing[:8]},
            "run chord pack again, with the same arguments: it writes what is missing",
        )
    return {layer: on(map_layer(Path(path), index, layer), where) for layer in wanted}


def map_layer(folder: Path, index: PackedIndex, layer: int) -> MoEWeights:
    """One layer on the CPU. Raises ``InputError`` unless its file lies in ``folder`` and is exactly what the index says."""
    path, described = folder / file_of(layer), index.packing.tensors(layer)
    _check_file(folder, path, index.packing.size(layer))
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            found = {name: file.get_tensor(name) for name in described} if names == sorted(described) else {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"open {path}", "the file must be safetensors", {"error": error}, _AGAIN) from None
    if not found:
        values = {"tensors": ", ".join(names[:4]), "wanted": ", ".join(described)}
        raise InputError(f"open {path}", "the file must hold the tensors of its layer", values, _AGAIN)
    for name, tensor in found.items():
        shape = tuple(described[name]["shape"])
        if tensor.dtype != torch.uint8 or tuple(tensor.shape) != shape:
            values = {"dtype": tensor.dtype, "shape": tuple(tensor.shape), "wanted": shape}
            raise InputError(f"open {path}", f"{name} must be uint8 of the index's shape", values, _AGAIN)
    return weights_of(index.packing, list(found.values()))


def weights_of(packing: Packing, tensors: Sequence[torch.Tensor]) -> MoEWeights:
    """A layer from its tensors, in the order of ``MoEWeights``."""
    described = matrices(packing.hidden, len(packing.share.neurons(packing.shape)), packing.interleave)
    found = zip(described.items(), tensors, strict=True)
    return MoEWeights(**{name: PackedW4A16(data, n, k, data.shape[0], rows) for (name, (n, k, rows)), data in found})


def on(weights: MoEWeights, device: torch.device) -> MoEWeights:
    """The same layer on ``device``: no copy where it lies there already."""
    both = (weights.gate_up, weights.down)
    return MoEWeights(*(PackedW4A16(one.data.to(device), one.n, one.k, one.experts, one.interleaved) for one in both))


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the bytes of a packed tensor on the CPU."""
    return hashlib.sha256(tensor.flatten().numpy()).hexdigest()


def _check_file(folder: Path, path: Path, size: int) -> None:
    asked = f"open {path}"
    if not path.is_file():
        raise InputError(asked, "the file must be there and regular", {"links": path.is_symlink()}, _AGAIN)
    if path.resolve().parent != folder.resolve():
        raise InputError(asked, "the file must lie in its folder", {"leads to": path.resolve()}, _AGAIN)
    if path.stat().st_size != size:
        raise InputError(asked, "the file must have the size of its layer", {"bytes": path.stat().st_size, "wanted": size}, _AGAIN)
