"""A compiled kernel with what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """``cubin``: the verified image. ``symbol``: its one kernel. ``facts``: see ``report.facts``, and ``log``-free.

    ``digest``: of the key. ``origin``: ``"compiled"`` for the build that compiled it, else ``"hit"``.
    """

    cubin: bytes
    symbol: str
    facts: Mapping[str, object]
    digest: str
    origin: str
