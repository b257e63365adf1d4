"""Entries of a cache in one file: an uncompressed tar, ``index.json`` first, then the three files of each entry.

Guaranteed: equal entries give equal bytes; an import reads and checks the whole archive before it writes anything, and then goes
through the store's own publish. Nothing is unpacked to a name that the archive chose: names are computed from the digests, and
any other name, order, kind or size of a member is refused, so paths that climb, links, devices and duplicates cannot matter.
Not guaranteed: who made it. As with a cache folder, whoever makes the archive makes the kernels.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chord_jit.errors import CacheError, InputError
from chord_jit.jit import elf, files, locks, record
from chord_jit.jit.store import Store
from chord_jit.version import VERSION

FORMAT, FORMAT_VERSION, INDEX = "chord_jit cubins", 1, "index.json"
#: Far above what any kernel needs (100 KB), far below what fills a disk or the memory.
MOST_ENTRIES, MOST_FILE, MOST_INDEX, MOST_TOTAL = 4096, 32 << 20, 64 << 20, 2 << 30
#: Zeros behind the last entry: tar fills its last record up, whose size its user may choose.
MOST_PADDING = 4 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Imported:
    """``new``, ``present``: digests that were published, and that were there. ``keys``: of all of them. ``made_by``: the version
    of chord_jit that wrote the archive."""

    new: tuple[str, ...]
    present: tuple[str, ...]
    keys: tuple[Mapping[str, str], ...]
    made_by: str


def export(contents: Mapping[str, Mapping[str, bytes]], target: Path) -> None:
    """Write the archive of these entries (digest to the files of ``Store.contents``) to the new file ``target``.

    Raises ``CacheError`` where the file cannot be made, ``InputError`` for more than an archive may hold.
    """
    asked = f"export to {target}"
    _bounded(asked, len(contents), [len(content) for of in contents.values() for content in of.values()])
    staging = target.with_name(f".{uuid.uuid4().hex}")
    try:
        files.write(staging, _packed(dict(sorted(contents.items()))))
        # A link, unlike a rename, fails where the name is taken.
        os.link(staging, target)
        files.sync_folder(target.absolute().parent)
    except FileExistsError:
        remedy = "name another file, or remove this one"
        raise CacheError(asked, "an archive must not replace a file", {"changed": "nothing"}, remedy) from None
    except OSError as error:
        raise CacheError(asked, "the folder must be there and writable", {"error": error}, "name a file that you can write") from None
    finally:
        with suppress(OSError):
            staging.unlink()


def load(path: Path, store: Store) -> Imported:
    """Publish every entry of the archive ``path`` in ``store``; those that are there stay.

    Raises ``InputError`` for an archive that is not right in every part, ``CacheError`` where ``store`` cannot keep entries;
    nothing was written then, unless the disk fills up on the way: the entries before that are whole, and stay.
    """
    with _opened(path) as file:
        # Twice through the file rather than everything in memory: what the second pass reads is checked again.
        keys = tuple(record.body_of(contents[record.RECORD], digest)["key"] for digest, contents in _entries(path, file))
        if not store.usable():
            raise CacheError(
                f"import {path}", "the cache must be writable", {"cache": store.root}, "set CHORD_CACHE_DIR to a folder of your own"
            )
        new, present = [], []
        for digest, contents in _entries(path, file):
            (new if _adopted(store, digest, contents) else present).append(digest)
        return Imported(tuple(new), tuple(present), keys, _index(path, file)["chord_jit"])


def _adopted(store: Store, digest: str, contents: Mapping[str, bytes]) -> bool:
    """False when the entry is there already, whole."""
    if store.find(digest) is not None:
        return False
    with locks.held(digest):
        return store.find(digest, repair=True) is None and store.adopt(digest, contents)


def _packed(contents: Mapping[str, Mapping[str, bytes]]) -> bytes:
    index = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "chord_jit": VERSION,
        "entries": [
            {
                "digest": digest, "key": record.body_of(of[record.RECORD], digest)["key"],
                "files": {name: {"size": len(of[name]), "sha256": hashlib.sha256(of[name]).hexdigest()} for name in record.NAMES},
            }
            for digest, of in contents.items()
        ],
    }  # fmt: skip
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, INDEX, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
        for digest, of in contents.items():
            for name in record.NAMES:
                _add(tar, f"{digest}/{name}", of[name])
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        raise _refused(path, "it must be a file that can be read", {"error": error.strerror}, "name an archive") from None


def _entries(path: Path, file: BinaryIO) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Digest and files of each entry of the archive, checked in full before they are given. Raises ``InputError``."""
    for item in _index(path, file)["entries"]:
        digest, contents = item["digest"], {}
        for name in record.NAMES:
            claim = item["files"][name]
            content = contents[name] = _next(path, file, f"{digest}/{name}", claim["size"])
            if hashlib.sha256(content).hexdigest() != claim["sha256"]:
                raise _damaged(path, f"{digest[:16]}/{name} does not match its checksum")
        try:
            entry = record.entry_of(contents, digest)
            key = record.body_of(contents[record.RECORD], digest)["key"]
            if not isinstance(entry.facts, dict) or elf.kernels(entry.cubin).count(entry.symbol) != 1:
                raise ValueError(f"it does not hold the kernel {entry.symbol} once")
        except (record.Damaged, ValueError) as problem:
            raise _damaged(path, f"the entry {digest[:16]}: {problem}") from None
        if key != item["key"] or hashlib.sha256(contents[record.SOURCE]).hexdigest() != key.get("source"):
            raise _damaged(path, f"the entry {digest[:16]} is not what the index or its key says")
        yield digest, contents
    rest = file.read(MOST_PADDING + 1)
    if len(rest) > MOST_PADDING or rest.strip(b"\0"):
        raise _damaged(path, "something follows the last entry")


def _index(path: Path, file: BinaryIO) -> dict:
    """The checked index; ``file`` stands behind it."""
    file.seek(0)
    content = _next(path, file, INDEX, None)
    try:
        index = json.loads(content)
        kind, version = index["format"], index["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, f"{INDEX} cannot be read") from None
    if (kind, version) != (FORMAT, FORMAT_VERSION):
        raise _refused(
            path, "it must be an archive of the format that this version reads",
            {"format": f"{kind!r} {version!r}", "read here": f"{FORMAT!r} {FORMAT_VERSION}", "made by": index.get("chord_jit", "?")},
            "export it again with the version of chord_jit that imports it",
        )
    try:
        digests = [item["digest"] for item in index["entries"]]
        sizes = [item["files"][name]["size"] for item in index["entries"] for name in record.NAMES]
        sound = (
            isinstance(index["chord_jit"], str) and all(isinstance(item["key"], dict) for item in index["entries"])
            and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests)
            and all(type(size) is int and size >= 0 for size in sizes)
            and all(set(item["files"]) == set(record.NAMES) for item in index["entries"])
            and all(set(claim) == {"size", "sha256"} for item in index["entries"] for claim in item["files"].values())
        )
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound or len(set(digests)) != len(digests):
        raise _damaged(path, f"{INDEX} names entries that cannot be, or one twice")
    _bounded(f"import {path}", len(digests), sizes)
    return index


def _bounded(asked: str, entries: int, sizes: list[int]) -> None:
    if entries > MOST_ENTRIES or max(sizes, default=0) > MOST_FILE or sum(sizes) > MOST_TOTAL:
        raise InputError(
            asked, f"an archive holds at most {MOST_ENTRIES} entries, {MOST_FILE} bytes a file and {MOST_TOTAL} in all",
            {"entries": entries, "bytes": sum(sizes), "largest": max(sizes), "changed": "nothing"}, "put fewer entries into each archive",
        )


def _next(path: Path, file: BinaryIO, name: str, size: int | None) -> bytes:
    """Content of the next member: a plain file ``name`` of ``size`` bytes (None: what it declares)."""
    try:
        member = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "ascii", "strict")
    except tarfile.HeaderError:
        raise _damaged(path, f"{name} is missing: the archive is cut short, or no archive") from None
    # Only the plain kind: no link, device, sparse file or extended header is ever interpreted.
    if member.type != tarfile.REGTYPE or member.linkname or member.name != name:
        raise _damaged(path, f"where the file {name} must lie there is {member.name!r} of kind {member.type!r}")
    if member.size > (MOST_INDEX if size is None else MOST_FILE) or member.size < 0 or size not in (None, member.size):
        raise _damaged(path, f"{name} declares {member.size} bytes" + ("" if size is None else f", the index {size}"))
    padded = -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    content = file.read(padded)
    if len(content) != padded:
        raise _damaged(path, f"it ends inside {name}")
    return content[: member.size]


def _damaged(path: Path, problem: str) -> InputError:
    return _refused(path, "every part must be there and match its checksum", {"problem": problem}, "copy or export the archive again")


def _refused(path: Path, rule: str, values: Mapping[str, object], remedy: str) -> InputError:
    return InputError(f"import {path}", rule, {**values, "changed": "nothing"}, remedy)
