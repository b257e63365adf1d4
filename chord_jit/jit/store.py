"""Entries on disk, one folder each: ``<root>/<aa>/<digest>/{kernel.cubin, entry.json, kernel.cu}``.

Guaranteed: a reader sees a whole entry or none; every byte that is handed out was checked against the checksums in the
entry, and the entry against the key that was asked for; nothing is read that another user could have written, unless the
root is trusted; only the user's root is ever written. A published entry is on the disk: it survives a crash of the machine.
Not guaranteed: that an entry once seen is still there; that writers of one key on different nodes see each other (each
then keeps its own build). ``find``, ``usable`` and ``publish`` never raise because of the disk: the worst case is a compile
that is not kept. The methods for tools raise ``CacheError``.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import CacheError
from chord_jit.jit import catalog, elf, eviction, files, layout, record, roots
from chord_jit.jit.catalog import Item
from chord_jit.jit.entry import Entry
from chord_jit.jit.eviction import Pruned
from chord_jit.jit.key import Key
from chord_jit.jit.notices import once

_VARIABLE = {"user": "CHORD_CACHE_DIR", "shared": "CHORD_CACHE_SHARED", "prebuilt": "CHORD_PREBUILT", "wheel": "installed wheels"}
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@dataclass(frozen=True)
class Store:
    """The entries below ``root``. ``kind`` and ``trusted``: as in ``roots.Root``."""

    root: Path
    kind: str = "user"
    trusted: bool = False

    @property
    def writable(self) -> bool:
        """Whether this is the user's: every other root is only read."""
        return self.kind == "user"

    def find(self, digest: str, *, repair: bool = False) -> Entry | None:
        """The entry of ``digest``, or None. No lock is needed.

        One that is damaged or not to be trusted is announced and not returned. With ``repair`` it is also moved to ``.bad/``,
        out of the way of a rebuild: only for the holder of the compile lock, or right before a publish, since without the lock a
        good entry that replaces it at this moment can be moved in its stead.
        """
        folder = layout.folder_of(self.root, digest)
        try:
            contents = self._read(folder)
            return None if contents is None else record.entry_of(contents, digest)
        except files.Untrusted as problem:
            self._refuse(problem)
            self._set_aside(folder, repair)
        except record.Damaged as problem:
            self._bad(folder, str(problem), repair)
        except FileNotFoundError as problem:
            self._bad(folder, f"{Path(problem.filename).name} is missing", repair)
        except OSError as problem:
            once(f"read {self.root}", f"kernel cache: {folder} cannot be read ({problem}), so its kernel is not taken from there.")
        return None

    def usable(self) -> bool:
        """Whether entries can be kept here; makes the root. When not, says so once: kernels then live in memory only."""
        try:
            files.private_folder(self.root)
            if os.access(self.root, os.W_OK | os.X_OK):
                return True
            self._memory_only(f"{self.root} is read-only")
        except files.Untrusted as problem:
            self._refuse(problem)
        except OSError as problem:
            self._memory_only(problem)
        return False

    def publish(self, entry: Entry, key: Key) -> None:
        """Keep ``entry``. When another writer was faster, its entry stays.

        When the disk refuses, the entry is not kept and one notice says so. Old entries may go once it is kept.
        """
        try:
            self._place(key.digest, record.files_of(entry, key))
        except files.Untrusted as problem:
            self._refuse(problem)
        except OSError as problem:
            self._memory_only(problem)

    def used(self, digest: str) -> None:
        """This process has taken the entry: recently used for every process, and not to be evicted by this one."""
        if self.writable:
            eviction.mark(self.root, digest)

    def items(self) -> Iterator[Item]:
        """What the root holds, in the order of digests. Records are checked, the cubins are not read."""
        return self._items(whole=False)

    def verify(self) -> Iterator[Item]:
        """As ``items``, with every byte checked: ``problem`` says what is wrong with an entry."""
        return self._items(whole=True)

    def item(self, digest: str) -> Item | None:
        """What the root holds under ``digest``, whole or damaged."""
        return catalog.item_of(layout.folder_of(self.root, digest), trusted=self.trusted)

    def contents(self, digest: str) -> dict[str, bytes]:
        """The files of a whole entry, name to content, as ``adopt`` takes them. Raises ``CacheError``."""
        folder = layout.folder_of(self.root, digest)
        try:
            contents = self._read(folder)
            if contents is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such entry", str(folder))
            record.entry_of(contents, digest)
            return contents
        except (OSError, files.Untrusted, record.Damaged) as problem:
            raise CacheError(
                f"read {folder}", "the entry must be whole and trusted", {"problem": problem}, "look with chord cache verify"
            ) from None

    def adopt(self, digest: str, contents: Mapping[str, bytes]) -> bool:
        """Keep an entry made elsewhere, checked as one that is loaded: False when there is one already. Raises ``CacheError``."""
        asked = f"add {digest} to {self.root}"
        self._own(asked)
        try:
            entry = record.entry_of(contents, digest)
            found = elf.kernels(entry.cubin)
        except (KeyError, ValueError, record.Damaged) as problem:
            raise CacheError(asked, "the entry must be whole", {"problem": problem}, "make it again where it came from") from None
        if found.count(entry.symbol) != 1:
            values = {"kernel": entry.symbol, "found": found}
            raise CacheError(asked, "the cubin must hold the kernel exactly once", values, "make it again where it came from")
        try:
            return self._place(digest, {name: contents[name] for name in record.NAMES})
        except (OSError, files.Untrusted) as problem:
            remedy = "set CHORD_CACHE_DIR to a folder that this user can write"
            raise CacheError(asked, "the root must take new entries", {"problem": problem}, remedy) from None

    def remove(self, folder: Path) -> None:
        """Out of sight at once: another process never meets half an entry. Raises ``CacheError``."""
        self._own(f"remove {folder}")
        if folder != layout.folder_of(self.root, folder.name):
            raise CacheError(f"remove {folder}", "it must be an entry of this root", {"root": self.root}, "take the folders of items()")
        try:
            layout.discard(self.root, folder)
        except OSError as error:
            raise CacheError(f"remove {folder}", "the entry must be removable", {"error": error}, "check who owns the folder") from None

    def prune(self, max_bytes: int, *, keep: Collection[str] = ()) -> Pruned:
        """Remove the least recently used entries until ``max_bytes`` hold the rest, and everything that nobody needs.

        Never what this process has loaded or found, nor the digests in ``keep``. Raises ``CacheError``.
        """
        self._own(f"prune {self.root}")
        return eviction.prune(self.root, max_bytes, keep)

    def folders(self) -> Iterator[Path]:
        """Every entry folder, whole or damaged, in the order of digests; nothing else that lies below the root."""
        return layout.entry_folders(self.root)

    def _items(self, *, whole: bool) -> Iterator[Item]:
        for folder in self.folders():
            item = catalog.item_of(folder, trusted=self.trusted, whole=whole)
            if item is not None:
                yield item

    def _read(self, folder: Path) -> dict[str, bytes] | None:
        """The files of an entry, None when there is none or it goes away meanwhile. Raises ``Untrusted`` or ``OSError``."""
        try:
            for level in (self.root, folder.parent, folder):
                seen = files.check_folder(level, trusted=self.trusted)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return {name: files.read(folder / name, trusted=self.trusted) for name in record.NAMES}
        except OSError as problem:
            if problem.errno in _GONE and not _same(folder, seen):
                return None
            raise

    def _place(self, digest: str, contents: Mapping[str, bytes]) -> bool:
        """Staged in the same file system, synced, then renamed into place at once; False when another writer was faster."""
        folder = layout.folder_of(self.root, digest)
        staging = self.root / layout.STAGING / f"{digest[:16]}.{os.getpid()}.{uuid.uuid4().hex}"
        try:
            for level in (self.root, staging.parent, staging):
                files.private_folder(level)
            for name, content in contents.items():
                files.write(staging / name, content)
            files.sync_folder(staging)
            files.private_folder(folder.parent)
            first = True
            try:
                staging.rename(folder)
            except OSError as problem:
                if problem.errno not in _TAKEN and not folder.is_dir():
                    raise
                first = False
            files.sync_folder(folder.parent)
            files.sync_folder(self.root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        eviction.mark(self.root, digest)
        if first:
            eviction.after_publish(self.root, sum(map(len, contents.values())))
        return first

    def _bad(self, folder: Path, problem: str, repair: bool) -> None:
        if not self.writable:
            once(f"bad {self.root}", f"kernel cache: the entry {folder} is damaged ({problem}) and skipped; tell whoever made {self.root}.")
            return
        once(f"bad {folder}", f"kernel cache: the entry {folder} is damaged ({problem}) and not used.")
        self._set_aside(folder, repair)

    def _set_aside(self, folder: Path, repair: bool) -> None:
        if repair and self.writable:
            try:
                eviction.quarantine(self.root, folder)
            except files.Untrusted as problem:
                self._refuse(problem)
            except OSError as problem:
                self._memory_only(problem)

    def _refuse(self, problem: files.Untrusted) -> None:
        remedy = "Set CHORD_CACHE_DIR to a folder of your own."
        if self.trusted:
            remedy = "Make it again: links and special files are refused everywhere."
        elif not self.writable:
            remedy = f"If you trust everybody who can write to what {_VARIABLE[self.kind]} names, set CHORD_CACHE_TRUST_SHARED=1."
        once(f"untrusted {self.root}", f"kernel cache: {problem}, so it is not used. {remedy}")

    def _own(self, asked: str) -> None:
        if not self.writable:
            remedy = "do it where the folder is made"
            raise CacheError(asked, "only the user's own root is changed", {"kind": self.kind, "named by": _VARIABLE[self.kind]}, remedy)

    def _memory_only(self, problem: object) -> None:
        once(
            f"write {self.root}",
            f"kernel cache: {problem}. Kernels compiled now are not kept; set CHORD_CACHE_DIR to a folder that this user can write.",
        )


def _same(folder: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(folder.lstat(), seen)
    except OSError:
        return False


def user_store() -> Store:
    """The user's store: the one that is written."""
    return Store(roots.cache_root())


def stores() -> tuple[Store, ...]:
    """Every store that a kernel is looked for in, the user's first."""
    return tuple(Store(root.path, root.kind, root.trusted) for root in roots.in_order())
