"""Where entries and locks lie, by the knobs and the installed wheels. Nothing is made here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from chord_jit import knobs
from chord_jit.jit import schema

#: Namespace package of the wheels of prebuilt kernels: each has a folder of its own in it, and that one the layout of a cache
#: folder (``chord_jit_cubins/<wheel>/chord_jit-v1/3f/3f09...``). It holds no code, and is found without importing anything.
WHEELS = "chord_jit_cubins"


@dataclass(frozen=True)
class Root:
    """A folder of entries. ``kind``: ``user``, ``shared``, ``prebuilt`` or ``wheel``; only the user's is ever written.

    ``trusted``: read whoever owns or can write it.
    """

    path: Path
    kind: str
    trusted: bool


def cache_root() -> Path:
    """Folder of the user's entries: our versioned subfolder of ``CHORD_CACHE_DIR``, else of the user's cache folder."""
    chosen = knobs.read("CHORD_CACHE_DIR")
    if not chosen:
        import platformdirs

        chosen = platformdirs.user_cache_path("chord_jit")
    return _versioned(chosen)


def in_order() -> tuple[Root, ...]:
    """The roots in the order of the search: the user's, ``CHORD_CACHE_SHARED``, ``CHORD_PREBUILT``, the installed wheels."""
    trusted = bool(knobs.read("CHORD_CACHE_TRUST_SHARED"))
    named = [
        Root(_versioned(folder), kind, trusted)
        for kind, knob in (("shared", "CHORD_CACHE_SHARED"), ("prebuilt", "CHORD_PREBUILT"))
        for folder in knobs.read(knob) or ()
    ]
    # Whoever can write to a folder that Python imports from runs code in this process anyway.
    wheels = [Root(_versioned(folder), "wheel", True) for folder in _wheels()]
    return Root(cache_root(), "user", False), *named, *wheels


def lock_root() -> Path:
    """Folder of the locks: node-local, because locks of network file systems hang, and one for each user.

    Below ``CHORD_LOCK_DIR``, else the user's runtime folder where it can be written, else the temporary folder.
    """
    chosen, runtime = knobs.read("CHORD_LOCK_DIR"), knobs.read("XDG_RUNTIME_DIR")
    if not chosen:
        chosen = runtime if runtime and os.access(runtime, os.W_OK | os.X_OK) else tempfile.gettempdir()
    return Path(os.path.abspath(Path(chosen).expanduser())) / f"chord_jit-locks-{os.geteuid()}"


def _versioned(folder: str | Path) -> Path:
    return Path(os.path.abspath(Path(folder).expanduser())) / schema.STORE_FOLDER


def _wheels() -> Iterator[Path]:
    spec = find_spec(WHEELS)
    for portion in spec.submodule_search_locations or () if spec else ():
        try:
            yield from sorted(path for path in Path(portion).iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
        except OSError:
            # A name on sys.path that is no folder, or is gone.
            continue
