"""Tensors of a sharded safetensors checkpoint by name. Only the files that are asked for are opened; nothing is executed."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from chord_jit.errors import InputError
from chord_jit.formats.model_config import read_json

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
#: What safetensors calls the dtypes that a checkpoint is made of.
_NAMES = {torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16"}


class Shards:
    """A context manager over the checkpoint in ``folder``: an index with its shards, or one ``model.safetensors``.

    Opened shards stay open until the block ends. Tensors are views of the mapped file: a shard that is cut short while
    it is mapped ends the process, as for every reader of such files. Raises ``InputError`` naming file and tensor.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self._open: dict[str, safe_open] = {}
        self._stack = ExitStack()
        if (self._folder / _INDEX).is_file():
            self._file_of = _weight_map(self._folder / _INDEX)
        elif (self._folder / _SINGLE).is_file():
            self._file_of = dict.fromkeys(self._shard(_SINGLE).keys(), _SINGLE)
        else:
            raise InputError(
                "open a checkpoint", f"its folder must hold {_INDEX} or {_SINGLE}", {"folder": self._folder},
                "pass the folder of a complete safetensors checkpoint",
            )

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def path(self, name: str) -> Path:
        """The file that holds ``name``."""
        return self._folder / self._file_of[name]

    def below(self, module: str) -> Sequence[str]:
        """Every tensor whose name begins with ``module.``, in the order of names."""
        return self._sorted[bisect_left(self._sorted, f"{module}.") : bisect_left(self._sorted, f"{module}/")]

    @cached_property
    def _sorted(self) -> list[str]:
        """``/`` comes next to the dot: what is below a module lies together."""
        return sorted(self._file_of)

    def there(self, names: Iterable[str]) -> bool:
        """Whether all of ``names`` are listed and their files are in the folder, whole or not."""
        names = list(names)
        return all(name in self for name in names) and all(path.is_file() for path in {self.path(name) for name in names})

    def require(self, names: Iterable[str]) -> None:
        """Refuses a checkpoint that lacks one of ``names``, or whose shards that hold them are absent or cut short."""
        names = list(names)
        missing = [name for name in names if name not in self]
        if missing:
            raise InputError(
                "read a checkpoint", "every tensor of the experts must be listed",
                {"missing": len(missing), "of": len(names), "first": missing[0], "folder": self._folder},
                "download the missing files, or ask for other experts",
            )
        for file in sorted({self._file_of[name] for name in names}):
            self._shard(file)

    def check(self, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> None:
        """Refuses a tensor of another dtype or shape, by what its shard's header says: nothing of it is read."""
        path = self.path(name)
        try:
            stored = self._shard(path.name).get_slice(name)
        except SafetensorError as error:
            values = {"file": path, "error": error}
            raise InputError(f"read {name}", "its shard must hold it", values, "download this file and the index again") from None
        dtype, found, wanted = stored.get_dtype(), tuple(stored.get_shape()), [_NAMES[dtype] for dtype in dtypes]
        if dtype not in wanted:
            values, only = {"file": path, "dtype": dtype, "wanted": " or ".join(wanted)}, " and ".join(wanted)
            raise InputError(f"read {name}", "its dtype must be one that can be packed", values, f"convert it: only {only} is packed here")
        if found != shape:
            raise InputError(
                f"read {name}", "its shape must be that which config.json implies", {"file": path, "shape": found, "wanted": shape},
                "use the config.json that belongs to these shards",
            )

    def tensor(
        self, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], part: tuple[slice, ...] = ()
    ) -> torch.Tensor:
        """One tensor on the CPU, or its ``part``, of which alone the bytes are read. Refused as ``check`` does."""
        self.check(name, dtypes, shape)
        return self._shard(self._file_of[name]).get_slice(name)[part or (slice(None),) * len(shape)]

    def _shard(self, file: str) -> safe_open:
        if file not in self._open:
            path = self._folder / file
            if not os.path.isfile(path):
                rule = "the shard must be a regular file that is there"
                raise InputError(f"open {file[:80]}", rule, {"folder": self._folder}, "download this file again")
            try:
                self._open[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                values = {"file": path, "error": error}
                raise InputError(f"open {file}", "the shard must be readable and complete", values, "download this file again") from None
        return self._open[file]


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor name to file name. A name that leads out of the folder is refused: an index is data, not trusted."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict):
        raise InputError(f"read {path.name}", "it must hold a weight_map", {"path": path}, "download the file again")
    for name, file in files.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".."):
            values = {"path": path, "tensor": name, "file": file}
            raise InputError(f"read {path.name}", "every tensor must lie in a file of the same folder", values, "download the file again")
    return files
