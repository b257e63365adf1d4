"""One finder for templates and device headers, in an installed wheel and in a source checkout alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from chord_jit.errors import ToolchainError

_PACKAGE = Path(__file__).resolve().parent
_extra: tuple[Path, ...] = ()


@lru_cache(maxsize=None)
def folder(name: str) -> Path:
    """The folder ``templates`` or ``include``. Raises ``ToolchainError`` when neither place holds it."""
    places = (_PACKAGE / "_assets" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise ToolchainError(
        f"find the {name} of chord_jit", "they must lie in the installed package or in the checkout",
        {"searched": ", ".join(map(str, places))}, "install chord_jit again",
    )


def folders(name: str) -> tuple[Path, ...]:
    """The folders to search for templates or headers, first match first: those of ``scope``, then our own."""
    return (*(root / name for root in _extra), folder(name))


@contextmanager
def scope(root: Path) -> Iterator[None]:
    """Within the block, ``root/templates`` and ``root/include`` are searched first (a family outside the package)."""
    global _extra
    before = _extra
    _extra = (Path(root).resolve(), *before)
    try:
        yield
    finally:
        _extra = before
