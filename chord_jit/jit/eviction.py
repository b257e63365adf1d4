"""Which entries of the user's root go when it grows above its limit, and what is swept on the way.

Guaranteed: least recently used first, by the time of the record, which a process sets when it first takes the entry from the
disk (to ten minutes); never an entry that this process has taken or published; a folder is renamed out of sight before it is deleted, so a
reader sees a whole entry or none; what other layouts and other software keep in the same cache folder is left alone.
Not guaranteed: an exact limit at every moment. Processes look at the whole root at their first publish and every ten
minutes, and add up their own entries in between.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from chord_jit import knobs
from chord_jit.jit import catalog, files, layout, record

#: Age in seconds at which a staging folder belongs to a writer that died, and at which nobody looks at a damaged entry any more.
_STALE, _FORGOTTEN = 3600.0, 86400.0
_LOOK_AGAIN = 600.0
#: A use within so many seconds of another is not written down.
_RECENT = 600.0
#: Down to this part of the limit, so that a cache at its limit is not looked through at every publish.
_ROOM = 0.9

_taken: set[Path] = set()
#: Root to when it was looked through and how much it holds by then and by this process's entries since. Unlocked: threads that
#: meet here look twice or count an entry less.
_sizes: dict[Path, tuple[float, int]] = {}


@dataclass(frozen=True)
class Pruned:
    """``entries``, ``freed``: entries removed and their bytes. ``kept``: bytes of those that stay. ``swept``: leftovers removed."""

    entries: int
    freed: int
    kept: int
    swept: int


def mark(root: Path, digest: str) -> None:
    """This process has taken or published the entry: recent for all, untouchable for this one. Touches the disk once for each entry."""
    folder = layout.folder_of(root, digest)
    if folder not in _taken:
        _taken.add(folder)
        try:
            # A write for each rank that starts, on a file system of the network, would tell nothing new.
            if time.time() - catalog.last_used(folder) > _RECENT:
                os.utime(folder / record.RECORD)
        except OSError:
            # On a read-only root nothing is evicted either.
            pass


def forget() -> None:
    """Start as a new process would."""
    _taken.clear()
    _sizes.clear()


def after_publish(root: Path, size: int) -> None:
    """Keep the root below ``CHORD_CACHE_MAX_BYTES`` now that ``size`` bytes were added. Does nothing most of the time; never raises."""
    limit, now = knobs.read("CHORD_CACHE_MAX_BYTES"), time.monotonic()
    looked, total = _sizes.get(root, (None, 0))
    if looked is not None and now - looked < _LOOK_AGAIN and (not limit or total + size <= limit):
        _sizes[root] = (looked, total + size)
        return
    pruned = prune(root, limit or None, room=_ROOM)
    _sizes[root] = (now, pruned.kept)


def prune(root: Path, max_bytes: int | None, keep: Collection[str] = (), *, room: float = 1.0) -> Pruned:
    """Sweep, and above ``max_bytes`` (None: no limit) remove entries until the rest is below ``room`` of it. Never raises ``OSError``."""
    swept = _sweep(root / layout.STAGING, _STALE) + _sweep(root / layout.BAD, _FORGOTTEN)
    found = sorted((catalog.last_used(folder), folder, layout.size_of(folder)) for folder in _entry_folders(root))
    kept = sum(size for _, _, size in found)
    entries = freed = 0
    if max_bytes is None or kept <= max_bytes:
        return Pruned(entries, freed, kept, swept)
    for used, folder, size in found:
        if kept <= max_bytes * room:
            break
        if folder in _taken or folder.name in keep or catalog.last_used(folder) > used:
            continue
        try:
            layout.discard(root, folder)
            entries, freed = entries + 1, freed + size
        except FileNotFoundError:
            # Another process was faster: its gain is ours.
            pass
        except OSError:
            continue
        kept -= size
    return Pruned(entries, freed, kept, swept)


def quarantine(root: Path, folder: Path) -> None:
    """Set a damaged entry aside for a look. Raises ``OSError`` or ``Untrusted``."""
    files.private_folder(root / layout.BAD)
    aside = root / layout.BAD / f"{folder.name}.{uuid.uuid4().hex}"
    folder.rename(aside)
    os.utime(aside)


def _entry_folders(root: Path) -> Iterator[Path]:
    try:
        yield from layout.entry_folders(root)
    except OSError:
        # Somebody empties the root at this moment.
        return


def _sweep(folder: Path, age: float) -> int:
    """Remove what has lain in ``folder`` for ``age`` seconds, by the clock of its file system."""
    swept = 0
    try:
        files.check_folder(folder)
        os.utime(folder)
        now = folder.lstat().st_mtime
        for path in list(folder.iterdir()):
            if now - path.lstat().st_mtime > age:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()
                swept += 1
    except (OSError, files.Untrusted):
        # Nothing there, or another process sweeps too.
        pass
    return swept
