"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from chord_jit import knobs
from chord_jit.errors import InputError

if TYPE_CHECKING:
    from chord_jit.jit.catalog import Item
    from chord_jit.jit.store import Store

_HEX = frozenset("0123456789abcdef")
_LIMIT = next(knob for knob in knobs.KNOBS if knob.name == "CHORD_CACHE_MAX_BYTES")


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def size(text: str) -> int:
    """Bytes, written as the limit of the cache is."""
    try:
        return _LIMIT.parse(text.strip() or "-")
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number of bytes, with K, M, G or T for powers of 1024") from None


def entry(prefix: str) -> tuple[Store, Item]:
    """The one entry of all stores whose digest starts with ``prefix``, and the first store that has it. Raises ``InputError``."""
    from chord_jit.jit.store import stores

    asked = f"find the kernel {prefix!r}"
    if not prefix or not _HEX.issuperset(prefix):
        raise InputError(asked, "a kernel is named by the first digits of its key", {"given": prefix}, "look with chord cache list")
    searched = stores()
    found = {folder.name: store for store in reversed(searched) for folder in store.folders() if folder.name.startswith(prefix)}
    if len(found) != 1:
        values = {"matches": ", ".join(sorted(found)) or "none", "searched": ", ".join(str(store.root) for store in searched)}
        raise InputError(asked, "exactly one entry must start with these digits", values, "look with chord cache list")
    ((digest, store),) = found.items()
    item = store.item(digest)
    if item is None or item.problem:
        problem = item.problem if item else "it has gone"
        raise InputError(asked, "its record must be whole", {"problem": problem}, "its next use compiles it again; see chord cache verify")
    return store, item
