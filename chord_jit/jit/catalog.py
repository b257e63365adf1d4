"""The entries of a root as a tool sees them: read without a lock, and without a word about what is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chord_jit.jit import files, layout, record


@dataclass(frozen=True)
class Item:
    """One entry folder.

    ``fields``: of the key, ``facts`` and ``symbol``: of the kernel; empty where the record cannot be believed.
    ``size``: bytes on disk. ``last_used``: seconds since the epoch. ``problem``: what is wrong with it, or "".
    """

    digest: str
    folder: Path
    size: int
    last_used: float
    fields: Mapping[str, str]
    facts: Mapping[str, object]
    symbol: str
    problem: str


def item_of(folder: Path, *, trusted: bool = False, whole: bool = False) -> Item | None:
    """The entry in ``folder``, None when it has gone. ``whole``: the checksums of its other files are checked too."""
    body: Mapping[str, object] = {}
    problem = ""
    try:
        files.check_folder(folder, trusted=trusted)
        body = record.body_of(files.read(folder / record.RECORD, trusted=trusted), folder.name)
        if whole:
            record.entry_of({name: files.read(folder / name, trusted=trusted) for name in record.NAMES}, folder.name)
    except FileNotFoundError as error:
        if not folder.exists():
            return None
        problem = f"{Path(error.filename).name} is missing"
    except (OSError, files.Untrusted, record.Damaged) as error:
        problem = str(error)
    return Item(
        folder.name, folder, layout.size_of(folder), last_used(folder),
        body.get("key", {}), body.get("facts", {}), str(body.get("symbol", "")), problem,
    )


def last_used(folder: Path) -> float:
    """When a process last took the entry from the disk: the time of its record, which nothing else changes. 0 without one."""
    try:
        return (folder / record.RECORD).lstat().st_mtime
    except OSError:
        return 0.0
