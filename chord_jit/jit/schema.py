"""Versions of what the cache writes, and the pins that stand in for a compiler that is not installed.

Raise a version when the meaning of the bytes it covers changes; old entries are then simply never found.
"""

from __future__ import annotations

#: Meaning of the key's fields.
KEY_VERSION = 1
#: Layout of an entry folder and of ``entry.json``.
ENTRY_VERSION = 1
#: Our own subfolder of the cache root.
STORE_FOLDER = f"chord_jit-v{ENTRY_VERSION}"
#: What a wheel of prebuilt kernels says about itself, in JSON, beside that folder.
ABOUT = "about.json"

#: The toolchain that chord_jit is released with. A machine without a compiler takes these for its keys, and so finds
#: the entries that a machine with them has built.
PINNED_COMPILER = "13.0.88"
PINNED_CUTLASS = "4.2.0"
PINNED_CUDA_HEADERS = "13000"
PINNED_CCCL = "3000001"
