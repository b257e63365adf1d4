"""One finder for templates and device headers, in an installed wheel and in a source checkout alike."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from chord_jit.errors import ToolchainError

_PACKAGE = Path(__file__).resolve().parent


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
