"""One compile of a key per node: a lock file for each key in a private, node-local folder.

The kernel of the machine drops a lock when its holder dies, so a lock file left behind blocks nobody; the files stay,
because removing one under a holder would let two in. A child that was forked under a lock lets go of it at once: it may
outlive the holder.
Not guaranteed: exclusion between nodes, or between containers that share a cache but no lock folder.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chord_jit import knobs
from chord_jit.jit import files, roots
from chord_jit.jit.notices import once

_POLL_SECONDS = 0.02
_handles: set[int] = set()


@contextmanager
def held(digest: str) -> Iterator[bool]:
    """Within the block this process alone compiles ``digest`` on this node: True. False when the lock could not be had
    within ``CHORD_LOCK_TIMEOUT`` seconds, or when there is no folder for it; the caller then compiles for itself."""
    root, handle, alone = roots.lock_root(), None, False
    try:
        try:
            files.private_folder(root)
            handle = _open(root / f"{digest}.lock")
            alone = _acquire(handle, knobs.read("CHORD_LOCK_TIMEOUT"))
        except (OSError, files.Untrusted) as problem:
            once(f"locks {root}", f"kernel cache: no compile locks: {problem}. Processes may compile the same kernel; set CHORD_LOCK_DIR.")
        else:
            if not alone:
                once(
                    f"timeout {digest}",
                    f"kernel cache: another process has held the compile of {digest[:16]} for {knobs.read('CHORD_LOCK_TIMEOUT'):g} s "
                    "(CHORD_LOCK_TIMEOUT); it is compiled here as well.",
                )
        yield alone
    finally:
        # A forked child has closed it already.
        if handle in _handles:
            _handles.discard(handle)
            os.close(handle)


def _open(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    _handles.add(handle)
    return handle


def _acquire(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)


def _let_go() -> None:
    # Closing, unlike unlocking, leaves the lock with the parent.
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_let_go)
