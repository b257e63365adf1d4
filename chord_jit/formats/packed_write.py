"""A checkpoint to the packed form on disk: one file a layer, written in place of memory, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from chord_jit.errors import InputError
from chord_jit.formats.checkpoint import Checkpoint, Progress, fill
from chord_jit.formats.expert_reader import ExpertReader
from chord_jit.formats.packed_compare import differences, sample
from chord_jit.formats.packed_index import INDEX, SHARED, PackedIndex, Packing, file_of, leftovers, placed, read_index
from chord_jit.formats.packed_load import digest, map_layer, weights_of
from chord_jit.formats.share import Share
from chord_jit.jit import files

#: What the file system lacks, and what to do, by the number of its error; of any other, that it refuses to write.
_FAULTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("the file system must have room", "make room, or name another folder"))
_FAULT = ("the folder must be writable", "name a folder that can be written")


@dataclass(frozen=True)
class Packed:
    """What a call of ``pack_checkpoint`` did: layers it wrote, layers that were there, bytes of all of them."""

    folder: Path
    written: tuple[int, ...]
    present: tuple[int, ...]
    bytes: int


def pack_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    layers: Iterable[int] | None = None,
    ep: int = 1,
    tp: int = 1,
    rank: int = 0,
    interleave: bool = True,
    progress: Progress | None = None,
) -> Packed:
    """Writes what ``load_moe_layers`` would give into the folder ``target``, to be opened with ``load_packed``.

    Guaranteed: a layer's file appears under its name whole and on the disk, the index names it only then, and a process that
    ends earlier leaves at most a hidden ``.partial`` file, which the next call removes. A layer that the index names is not
    written again, so a call that was cut short goes on where it was, and other ``layers`` can be added, of the same checkpoint:
    one with the same config.json, and of each layer that is there one expert that has the same codes and scales. What else
    differs is not seen: ``verify_packed`` compares more. One process at a time. Nothing is written or removed before the folder is
    known to be new or this packing's.
    Each file is filled through its mapping: memory holds less than two experts, as in ``load_moe_layers``, or the one that is
    compared, unpacked.

    Raises ``InputError`` for what ``load_moe_layers`` refuses, for a folder that holds anything else, another packing
    included, or that another process writes, and for a disk that is full or read-only. A folder made for nothing is removed.
    """
    share = Share(ep, tp, rank)
    with Checkpoint(source) as checkpoint:
        wanted, shape = checkpoint.layers(layers), checkpoint.shape
        experts, neurons = share.experts(shape), share.neurons(shape)
        packing = Packing(shape.hidden, shape.moe_intermediate, shape.experts, share, interleave, config_hash(source))
        with _sole_writer(Path(target)) as folder:
            index = _index(folder, packing, wanted)
            _require_same_weights(folder, index, checkpoint)
            present = [layer for layer in wanted if layer in index.layers]
            missing = [layer for layer in wanted if layer not in index.layers]
            readers = checkpoint.readers(missing, experts, neurons) if missing else {}
            for left in leftovers(folder):
                left.unlink()
            with _started(folder, index):
                for number, layer in enumerate(missing):
                    counted = (number * len(experts), len(missing) * len(experts))
                    sums = _write_layer(folder, packing, layer, readers[layer], experts, counted, progress)
                    index = replace(index, layers={**index.layers, layer: sums})
                    index.write(folder)
    return Packed(Path(target), tuple(missing), tuple(present), sum(packing.size(layer) for layer in wanted))


def config_hash(source: str | Path) -> str:
    """SHA-256 of a checkpoint's config.json."""
    return hashlib.sha256((Path(source) / "config.json").read_bytes()).hexdigest()


@contextmanager
def _sole_writer(folder: Path) -> Iterator[Path]:
    """``folder``, made if need be, for this process alone; folders that were made and stayed empty are removed in the end."""
    asked = f"pack into {folder}"
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        handle = _locked(folder)
        try:
            yield folder
        finally:
            os.close(handle)
    except OSError as error:
        rule, remedy = _FAULTS.get(error.errno, _FAULT)
        raise InputError(asked, rule, {"error": error}, remedy) from None
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()


def _locked(folder: Path) -> int:
    """A handle of ``folder``, made if need be, that keeps other writers out until it is closed. Raises ``InputError`` and ``OSError``."""
    asked = f"pack into {folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(asked, "it must be a folder", {"error": error}, "name a new folder") from None
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(asked, "one process at a time may write there", {}, "wait for it, or name another folder") from None
    return handle


def _index(folder: Path, packing: Packing, wanted: Sequence[int]) -> PackedIndex:
    """The index to go on from: layers that are there with their size."""
    asked, rule, remedy = f"pack into {folder}", "the folder must be new or hold this packing", "name a new folder"
    if not (folder / INDEX).exists():
        others = sorted(path.name for path in {*folder.iterdir()}.difference(leftovers(folder)))
        if others:
            raise InputError(asked, rule, {"holds": ", ".join(others[:4])}, remedy)
        return PackedIndex(packing, tuple(sorted(wanted)), {})
    index = read_index(folder)
    if index.packing != packing:
        here, asked_for = index.packing.facts(), packing.facts()
        values = {name: f"{here[name]} (asked: {asked_for[name]})" for name in here if here[name] != asked_for[name]}
        raise InputError(asked, rule, values, remedy)
    whole = {layer: sums for layer, sums in index.layers.items() if _size(folder / file_of(layer)) == packing.size(layer)}
    return PackedIndex(packing, tuple(sorted({*index.wanted, *wanted})), whole)


def _require_same_weights(folder: Path, index: PackedIndex, checkpoint: Checkpoint) -> None:
    """Refuses to go on with layers of another checkpoint: a fine-tuned model has the config.json of the model that it was made of.
    Layers whose shards are gone are not compared.
    """
    share, shape = index.packing.share, checkpoint.shape
    for layer in sorted(index.layers):
        chosen = sample(layer, share.experts(shape), 1)
        if not all(checkpoint.there(layer, expert) for expert in chosen.values()):
            continue
        reader = checkpoint.readers([layer], list(chosen.values()), share.neurons(shape))[layer]
        for expert, what in differences(map_layer(folder, index, layer), reader, chosen):
            raise InputError(
                f"pack into {folder}", "it holds layers of other weights", {"layer": layer, "expert": expert, "found": what},
                "name a new folder; chord verify says whether the layers that are there are damaged",
            )


@contextmanager
def _started(folder: Path, index: PackedIndex) -> Iterator[None]:
    """An index is there before the first file of a new folder, and goes again when no file comes of it."""
    if not (folder / INDEX).exists():
        index.write(folder)
    try:
        yield
    except BaseException:
        if not any(folder.glob("layer-*")):
            (folder / INDEX).unlink()
        raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _write_layer(
    folder: Path, packing: Packing, layer: int, reader: ExpertReader, experts: Sequence[int], counted: tuple[int, int],
    progress: Progress | None,
) -> Mapping[str, str]:
    """One file under its name, and the checksums of its tensors."""
    with placed(folder / file_of(layer)) as staging:
        tensors = _make(staging, packing, layer)
        fill(weights_of(packing, list(tensors.values())), reader, layer, experts, counted, progress)
        sums = {name: digest(tensor) for name, tensor in tensors.items()}
        with staging.open("rb") as file:
            os.fsync(file.fileno())
    return sums


def _make(path: Path, packing: Packing, layer: int) -> dict[str, torch.Tensor]:
    """A new file with its header, and its tensors mapped to be filled; its room is taken first, so that a full disk is an error here."""
    head, at = packing.header(layer)
    files.write(path, head, mode=SHARED)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, packing.size(layer))
    whole = torch.from_file(str(path), shared=True, size=packing.size(layer), dtype=torch.uint8)
    described = packing.tensors(layer)
    return {name: whole[start:end].view(described[name]["shape"]) for name, (start, end) in at.items()}
