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

    Below ``CHORD_LOCK_DIR``, else the user's runtime folder where it can be written, else the temporary folder.
    """
    chosen, runtime = knobs.read("CHORD_LOCK_DIR"), knobs.read("XDG_RUNTIME_DIR")
    if not chosen:
        chosen = runtime if runtime and os.access(runtime, os.W_OK | os.X_OK) else tempfile.gettempdir()
    return Path(os.path.abspath(Path(chosen).expanduser())) / f"chord_jit-locks-{os.geteuid()}"
