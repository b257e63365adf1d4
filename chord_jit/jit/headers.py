"""The project headers that a source pulls in, by content."""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path

from chord_jit import assets
from chord_jit.errors import ToolchainError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def closure(source: str) -> dict[str, str]:
    """Name to SHA-256 of every project header that ``source`` reaches, sorted by name.

    Includes behind ``#if`` count as reached, so a header may be listed that the compiler skips, never the reverse.
    A project header is one that our include folders hold; every other name belongs to the toolchain, whose versions
    stand in the key. Raises ``ToolchainError`` when a ``chord/`` header is missing.
    """
    roots = assets.folders("include")
    found: dict[str, str] = {}
    waiting = [(name, "") for name in _INCLUDE.findall(source)]
    while waiting:
        asked, includer = waiting.pop()
        name, path = _find(asked, includer, roots)
        if path is None and asked.startswith("chord/"):
            raise ToolchainError(
                f"hash the header {asked}", "a header of chord_jit must exist",
                {"included by": includer or "the rendered source", "searched": ", ".join(map(str, roots))}, "install chord_jit again",
            )
        if path is None or name in found:
            continue
        content = path.read_bytes()
        found[name] = hashlib.sha256(content).hexdigest()
        waiting += [(inner, name) for inner in _INCLUDE.findall(content.decode("utf-8"))]
    return dict(sorted(found.items()))


def _find(asked: str, includer: str, roots: tuple[Path, ...]) -> tuple[str, Path | None]:
    """The header's name below its include folder and its file: beside the includer first, as compilers search."""
    for name in (posixpath.normpath(posixpath.join(posixpath.dirname(includer), asked)), asked):
        for root in roots:
            if (root / name).is_file():
                return name, root / name
    return asked, None
