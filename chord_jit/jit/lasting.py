"""Device memory that outlives the call which asked for it.

What a thread allocates may belong to a pool that somebody else empties: the warm-up of ``torch.compile(mode="reduce-overhead")``
and an engine's sleep mode both route a thread's allocations into one. So lasting memory is allocated by a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Made = TypeVar("Made")


def outside_pools(make: Callable[[], Made]) -> Made:
    """``make()``, run in a thread that allocates from no pool and whose current stream is the default one. Raises what it raises."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(make).result()
