"""What a compiler is to the engine: a request in, a cubin with its facts out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chord_jit import assets, device
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.toolchain import Toolchain, discover


@dataclass(frozen=True)
class Request:
    """One translation unit. ``program``: the file name that messages show, without a folder. ``includes``: ours only."""

    source: str
    program: str
    symbol: str
    arch: str
    includes: tuple[Path, ...]


@dataclass(frozen=True)
class Result:
    """``cubin``: an ELF image for the request's target. ``log``: all that the compiler and the assembler printed."""

    cubin: bytes
    log: str
    seconds: float


class Compiler(Protocol):
    """Raises ``CompileError`` with the log when the source is refused, ``ToolchainError`` when a part is missing.

    An implementation can be pickled: warm-up sends it to its worker processes.
    """

    def compile(self, request: Request) -> Result: ...


_injected: Compiler | None = None


def flags(kind: str, arch: str) -> tuple[str, ...]:
    """The options of every compile for ``arch``, without include folders: what the key holds.

    A cubin of exactly this target, never PTX: PTX from a newer toolkit is refused by an older driver. The assembler's
    report is the source of registers and spills. CUTLASS's headers leave some functions without a space: NVRTC takes
    them for device functions on request, nvcc needs to be allowed to call host constexpr ones.
    Raises ``UnsupportedDeviceError`` for an unknown target.
    """
    device.target(arch)
    own = ("-default-device",) if kind == "nvrtc" else ("-cubin", "--expt-relaxed-constexpr")
    return (f"--gpu-architecture={arch}", "-std=c++17", "--ptxas-options=-v", *own)


def request(spec: KernelSpec, source: str) -> Request:
    """The compile of ``spec``."""
    return Request(source, f"{spec.stem}.cu", spec.symbol, spec.arch, assets.folders("include"))


def current() -> Compiler:
    """The compiler of ``scope``, or the one that ``CHORD_COMPILER`` names."""
    if _injected is not None:
        return _injected
    return _named(discover())


@contextmanager
def scope(compiler: Compiler) -> Iterator[None]:
    """Within the block, every compile of this process goes to ``compiler``."""
    global _injected
    before, _injected = _injected, compiler
    try:
        yield
    finally:
        _injected = before


def _named(toolchain: Toolchain) -> Compiler:
    if toolchain.kind == "nvcc":
        from chord_jit.jit.nvcc import Nvcc

        return Nvcc(toolchain)
    from chord_jit.jit.nvrtc import Nvrtc

    return Nvrtc(toolchain)
