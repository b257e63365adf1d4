"""Whether a call asks the operating system for anything: a forked child that the kernel kills at its first system call."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable

_PR_SET_SECCOMP, _STRICT = 22, 1
#: What the child writes: before and after the call, or that this machine has no strict seccomp.
BEGUN, ENDED, CANNOT = b"begun ", b"ended", b"cannot"


def strictly(call: Callable[[int], object], rounds: int) -> tuple[bytes, int]:
    """What a forked child wrote around ``call(rounds)``, in which only read and write are allowed, and the signal that ended it.

    ``call`` runs once before without the trap, to be warm.
    """
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gc.disable()
            call(rounds)
            if ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _STRICT, 0, 0, 0) != 0:
                os.write(send, CANNOT)
                os._exit(0)
            os.write(send, BEGUN)
            call(rounds)
            os.write(send, ENDED)
            # Not even leaving is allowed.
            os.getppid()
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        written = pipe.read()
    return written, os.WTERMSIG(os.waitpid(child, 0)[1])
