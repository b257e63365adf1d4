"""Measures what torch holds at once: every storage that an operation makes, until it is freed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Within the block, ``peak`` is the most bytes of storages made inside it that lived at the same time; what is a view of a
    mapped safetensors file counts nothing.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in self._tensors((args, kwargs)):
            self._see(tensor.untyped_storage(), made=False)
        result = function(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            self._see(tensor.untyped_storage(), made=True)
        self._seen = {key: entry for key, entry in self._seen.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._seen.values()))
        return result

    def _see(self, storage: torch.UntypedStorage, made: bool) -> None:
        """A weak reference keeps its key from being used again as long as it is held."""
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes() if made and not mapped(storage.data_ptr()) else 0)

    @staticmethod
    def _tensors(tree):
        return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


def mapped(address: int) -> bool:
    """Whether a safetensors file is mapped at ``address``."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < stop:
            return ".safetensors" in line
    return False
