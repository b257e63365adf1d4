"""Where compiled kernels are kept, for commands whose work would end with them if they were not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from chord_jit.errors import CacheError

if TYPE_CHECKING:
    from chord_jit.jit.spec import KernelSpec


def place_of(spec: KernelSpec) -> Path | None:
    """The first root that has the kernel, whole; None where no root has it."""
    from chord_jit.jit.key import key_of
    from chord_jit.jit.store import stores

    digest = key_of(spec).digest
    return next((store.root for store in stores() if store.find(digest) is not None), None)


def require_kept(asked: str, specs: Iterable[KernelSpec]) -> None:
    """Raises ``CacheError`` where a kernel would have to be compiled and could not be kept. A notice has then said why."""
    from chord_jit.jit.store import user_store

    store = user_store()
    if store.usable():
        return
    lacking = sum(place_of(spec) is None for spec in dict.fromkeys(specs))
    if lacking:
        raise CacheError(
            asked, "the cache must be writable: nothing but what it keeps comes of compiling here",
            {"cache": store.root, "kernels to compile": lacking}, "set CHORD_CACHE_DIR to a folder of your own",
        )  # fmt: skip
