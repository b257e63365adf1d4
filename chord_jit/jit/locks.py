"""One compile of a key per node: a lock file for each key in a private, node-local folder.

The kernel of the machine drops a lock when its holder dies, so a lock file left behind blocks nobody; the files stay,
because removing one under a holder would let two in.
Not guaranteed: exclusion between nodes, or between containers that share a cache but no lock folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chord_jit import knobs
from chord_jit.jit import files, roots
from chord_jit.jit.notices import once


@contextmanager
def held(digest: str) -> Iterator[bool]:
    """Within the block this process alone compiles ``digest`` on this node: True. False when the lock could not be had
    within ``CHORD_LOCK_TIMEOUT`` seconds, or when there is no folder for it; the caller then compiles for itself."""
    # Only here: a process that finds all its kernels takes no lock.
    from filelock import FileLock, Timeout

    root = roots.lock_root()
    try:
        files.private_folder(root)
        lock = FileLock(root / f"{digest}.lock", timeout=knobs.read("CHORD_LOCK_TIMEOUT"), mode=0o600)
        lock.acquire()
    except Timeout:
        once(
            f"timeout {digest}",
            f"kernel cache: another process has held the compile of {digest[:16]} for {knobs.read('CHORD_LOCK_TIMEOUT'):g} s "
            "(CHORD_LOCK_TIMEOUT); it is compiled here as well.",
        )
        lock = None
    except (OSError, files.Untrusted) as problem:
        once(f"locks {root}", f"kernel cache: no compile locks: {problem}. Processes may compile the same kernel; set CHORD_LOCK_DIR.")
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()
