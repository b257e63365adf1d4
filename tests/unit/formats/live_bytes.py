"""Measures what torch holds at once: every storage that an operation makes, until it is freed."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Within the block, ``peak`` is the most bytes of storages made inside it that lived at the same time."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._before: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in self._tensors((args, kwargs)):
            key = tensor.untyped_storage()._cdata
            if key not in self._made:
                self._before.add(key)
        result = function(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._before and storage._cdata not in self._made:
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._made = {key: entry for key, entry in self._made.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._made.values()))
        return result

    @staticmethod
    def _tensors(tree):
        return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))
