"""What the JIT did in this process, as numbers that a test or an operator can assert."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Counters:
    """``hits``: builds that found their entry, in memory or in the store. ``compiles``: compiles that gave an entry.

    ``failures``: compiles that did not. ``loads``: kernels loaded to a device. ``compile_seconds``: time inside the
    compiler, added over processes of a warm-up.
    """

    hits: int = 0
    compiles: int = 0
    failures: int = 0
    loads: int = 0
    compile_seconds: float = 0.0


_lock = threading.Lock()
_now = Counters()


def counters() -> Counters:
    """The numbers since the process started or since ``reset``."""
    return _now


def reset() -> None:
    """Start again from zero."""
    global _now
    with _lock:
        _now = Counters()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# Another thread of the parent may hold the lock at the moment of the fork.
os.register_at_fork(after_in_child=_new_lock)


def add(**steps: float) -> None:
    """Raise the named numbers."""
    global _now
    with _lock:
        _now = replace(_now, **{name: getattr(_now, name) + step for name, step in steps.items()})
