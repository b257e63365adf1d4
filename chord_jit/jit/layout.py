"""What lies where below a root, and how an entry goes away."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

STAGING, BAD = ".staging", ".bad"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def folder_of(root: Path, digest: str) -> Path:
    """Where the entry of ``digest`` lies, whether or not it is there."""
    return root / digest[:2] / digest


def entry_folders(root: Path) -> Iterator[Path]:
    """Every entry folder, whole or damaged, in the order of digests; nothing else that lies below ``root``."""
    return (folder for folder in sorted(root.glob("??/*")) if _DIGEST.fullmatch(folder.name) and folder.is_dir())


def size_of(folder: Path) -> int:
    """Bytes in the files of ``folder``; those that go away meanwhile count nothing."""
    size = 0
    try:
        with os.scandir(folder) as files:
            for file in files:
                size += file.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return size


def discard(root: Path, folder: Path) -> None:
    """Out of sight at once, then file by file: another process never meets half an entry.

    Raises ``OSError`` where the entry stays. Files that cannot be deleted once it is out of sight are left to the next sweep.
    """
    doomed = root / STAGING / f"removed.{uuid.uuid4().hex}"
    # Not ``private_folder``: removing is the remedy for a cache that others could write, so it must work there.
    doomed.parent.mkdir(mode=0o700, exist_ok=True)
    folder.rename(doomed)
    # A network file system may hold on to a file in use, and another process may sweep here at this moment.
    shutil.rmtree(doomed, ignore_errors=True)
