"""JIT-compiled CUDA kernels for serving mixture-of-experts models on Hopper. Importing touches no GPU and no disk."""

from __future__ import annotations

from importlib import import_module

from chord_jit.version import VERSION as __version__

_PUBLIC = {
    name: "chord_jit.api"
    for name in (
        "Counters", "Deployment", "IndexedRouting", "MoELayer", "MoEWeights", "PackedW4A16", "WarmupReport", "align_blocks",
        "block_m_for", "contiguous", "counters", "indexed", "load_moe_layers", "load_packed", "masked", "pack_w4a16", "pack_w4a16_grouped",
        "unpack_w4a16", "warm_up",
    )
}  # fmt: skip

__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
