"""Where the cache and the locks lie, by the knobs. Nothing is made here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from chord_jit import knobs
from chord_jit.jit import schema


def cache_root() -> Path:
    """Folder of the entries: our versioned subfolder of ``CHORD_CACHE_DIR``, else of the user's cache folder."""
    chosen = knobs.read("CHORD_CACHE_DIR")
    parent = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("chord_jit")
    return Path(os.path.abspath(parent)) / schema.STORE_FOLDER


def lock_root() -> Path:
    """Folder of the locks: node-local, because locks of network file systems hang, and one for each user.

    Below ``CHORD_LOCK_DIR``, else the user's runtime folder, else the temporary folder.
    """
    chosen = knobs.read("CHORD_LOCK_DIR")
    return (Path(os.path.abspath(Path(chosen).expanduser())) if chosen else _runtime_folder()) / f"chord_jit-locks-{os.geteuid()}"


def _runtime_folder() -> Path:
    try:
        folder = platformdirs.user_runtime_path()
    except OSError:
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
