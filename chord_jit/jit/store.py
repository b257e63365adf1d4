"""Entries on disk, one folder each: ``<root>/<aa>/<digest>/{kernel.cubin, entry.json, kernel.cu}``.

Guaranteed: a reader sees a whole entry or none; every byte that is handed out was checked against the checksums in the
entry, and the entry against the key that was asked for; nothing is read that another user could have written. A
published entry is on the disk: it survives a crash of the machine.
Not guaranteed: that an entry once seen is still there; that writers of one key on different nodes see each other (each
then keeps its own build). Nothing that a call of a kernel does here raises because of the disk: the worst case is a compile
that is not kept.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import CacheError
from chord_jit.jit import files, record, roots
from chord_jit.jit.entry import Entry
from chord_jit.jit.key import Key
from chord_jit.jit.notices import once

_STAGING, _BAD = ".staging", ".bad"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Store:
    """The entries below ``root``."""

    root: Path

    def find(self, digest: str, *, repair: bool = False) -> Entry | None:
        """The entry of ``digest``, or None. No lock is needed.

        A damaged one is announced and not returned. With ``repair`` it is also moved to ``.bad/``, out of the way of a
        rebuild: only for the holder of the compile lock, or a good entry that just replaced it could be moved.
        """
        folder = self._folder(digest)
        try:
            if not self._present(folder):
                return None
            return record.entry_of({name: files.read(folder / name) for name in (record.CUBIN, record.SOURCE, record.RECORD)}, digest)
        except files.Untrusted as problem:
            once(f"untrusted {self.root}", f"kernel cache: {problem}, so it is not read. Set CHORD_CACHE_DIR to a folder of your own.")
        except record.Damaged as problem:
            self._bad(folder, str(problem), repair)
        except FileNotFoundError as problem:
            self._bad(folder, f"{Path(problem.filename).name} is missing", repair)
        except OSError as problem:
            once(f"read {self.root}", f"kernel cache: {folder} cannot be read ({problem}); its kernel is compiled again.")
        return None

    def usable(self) -> bool:
        """Whether entries can be kept here; makes the root. When not, says so once: kernels then live in memory only."""
        try:
            files.private_folder(self.root)
            if os.access(self.root, os.W_OK | os.X_OK):
                return True
            problem: object = f"{self.root} is read-only"
        except (OSError, files.Untrusted) as error:
            problem = error
        self._memory_only(problem)
        return False

    def publish(self, entry: Entry, key: Key) -> None:
        """Keep ``entry``: staged in the same file system, synced, then renamed into place at once.

        When another writer was faster, its entry stays. When the disk refuses, the entry is not kept and one notice says so.
        """
        folder = self._folder(key.digest)
        staging = self.root / _STAGING / f"{key.digest[:16]}.{os.getpid()}.{uuid.uuid4().hex}"
        try:
            for level in (self.root, staging.parent, staging):
                files.private_folder(level)
            for name, content in record.files_of(entry, key).items():
                files.write(staging / name, content)
            files.sync_folder(staging)
            files.private_folder(folder.parent)
            try:
                staging.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
            files.sync_folder(folder.parent)
            files.sync_folder(self.root)
        except (OSError, files.Untrusted) as problem:
            self._memory_only(problem)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def folders(self) -> Iterator[Path]:
        """Every entry folder, whole or damaged, in the order of digests; nothing else that lies below the root."""
        return (folder for folder in sorted(self.root.glob("??/*")) if _DIGEST.fullmatch(folder.name) and folder.is_dir())

    def remove(self, folder: Path) -> None:
        """Out of sight at once, then file by file: another process never meets half an entry. Raises ``CacheError``."""
        doomed = self.root / _STAGING / f"cleared.{uuid.uuid4().hex}"
        try:
            # Not ``private_folder``: removing is the remedy for a cache that others could write, so it must work there.
            doomed.parent.mkdir(mode=0o700, exist_ok=True)
            folder.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise CacheError(f"remove {folder}", "the entry must be removable", {"error": error}, "check who owns the folder") from None

    def _folder(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def _present(self, folder: Path) -> bool:
        try:
            for level in (self.root, folder.parent, folder):
                files.check_folder(level)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _bad(self, folder: Path, problem: str, repair: bool) -> None:
        once(f"bad {folder}", f"kernel cache: the entry {folder} is damaged ({problem}); its kernel is compiled again.")
        if repair:
            try:
                files.private_folder(self.root / _BAD)
                folder.rename(self.root / _BAD / f"{folder.name}.{uuid.uuid4().hex}")
            except (OSError, files.Untrusted) as error:
                self._memory_only(error)

    def _memory_only(self, problem: object) -> None:
        once(
            f"write {self.root}",
            f"kernel cache: {problem}. Kernels compiled now are not kept; set CHORD_CACHE_DIR to a folder that this user can write.",
        )


def user_store() -> Store:
    """The store that the knobs name."""
    return Store(roots.cache_root())
