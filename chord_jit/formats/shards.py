"""Tensors of a sharded safetensors checkpoint by name. Only the files that are asked for are opened; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from chord_jit.errors import InputError
from chord_jit.formats.model_config import read_json

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


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

    def tensor(
        self, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...], part: tuple[slice, ...] = ()
    ) -> torch.Tensor:
        """One tensor on the CPU, or its ``part``, of which alone the bytes are read; refused when the whole has another dtype or shape."""
        path = self.path(name)
        try:
            stored = self._shard(path.name).get_slice(name)
            found = tuple(stored.get_shape())
            tensor = stored[part if found == shape and part else (slice(None),) * len(found)]
        except SafetensorError as error:
            values = {"file": path, "error": error}
            raise InputError(f"read {name}", "its shard must hold it", values, "download this file and the index again") from None
        if tensor.dtype not in dtypes or found != shape:
            raise InputError(
                f"read {name}", "dtype and shape must be those that config.json implies",
                {"file": path, "dtype": tensor.dtype, "shape": found, "wanted": (*dtypes, shape)},
                "use the config.json that belongs to these shards",
            )
        return tensor

    def _shard(self, file: str) -> safe_open:
        if file not in self._open:
            path = self._folder / file
            try:
                self._open[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                values = {"file": path, "error": error}
                raise InputError(f"open {file}", "the shard must exist and be complete", values, "download this file again") from None
        return self._open[file]


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor name to file name. A name that leads out of the folder is refused: an index is data, not trusted."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict):
        raise InputError(f"read {path.name}", "it must hold a weight_map", {"path": path}, "download the file again")
    for name, file in files.items():
        if not isinstance(file, str) or Path(file).name != file:
            values = {"path": path, "tensor": name, "file": file}
            raise InputError(f"read {path.name}", "every tensor must lie in a file of the same folder", values, "download the file again")
    return files
