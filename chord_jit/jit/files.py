"""Files and folders that only their owner can change, and writes that a crash cannot tear."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Untrusted(Exception):
    """A path that somebody else could have written: its content must not be loaded."""


def private_folder(path: Path) -> None:
    """Make ``path`` for this user alone, or accept it as it is. Raises ``OSError`` or ``Untrusted``."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)


def check_folder(path: Path, *, trusted: bool = False) -> os.stat_result:
    """Raises ``Untrusted`` unless ``path`` itself is a folder that only this user (or root) can write, ``OSError`` if it is not there.

    ``trusted``: any folder will do.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Untrusted(f"{path} is not a folder")
    if not trusted:
        _check(path, found)
    return found


def read(path: Path, *, trusted: bool = False) -> bytes:
    """Content of a regular file that only this user (or root) can write (``trusted``: of any). Raises ``Untrusted`` or ``OSError``."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Untrusted(f"{path} is not a regular file")
        if not trusted:
            _check(path, found)
        return file.read()


def write(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """A new file for this user alone, or of ``mode`` as far as the umask allows, on the disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """The names in ``path`` are on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check(path: Path, found: os.stat_result) -> None:
    # Root can write everything anyway, so a file of root's tells nothing new.
    if found.st_uid not in (os.geteuid(), 0):
        raise Untrusted(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Untrusted(f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")
