"""NVRTC in this process, through cuda.bindings."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

from chord_jit.errors import CompileError, ToolchainError
from chord_jit.jit.compiler import Request, Result, flags
from chord_jit.jit.toolchain import Toolchain


@dataclass(frozen=True)
class Nvrtc:
    """Compiles with the NVRTC of ``toolchain``. The library is loaded at the first compile; other threads run meanwhile."""

    toolchain: Toolchain

    def compile(self, request: Request) -> Result:
        self.toolchain.require()
        self._load()
        from cuda.bindings import nvrtc

        self._check_version(nvrtc)
        includes = (*request.includes, *self.toolchain.include_dirs)
        options = [text.encode() for text in (*flags("nvrtc", request.arch), *(f"-I{folder}" for folder in includes))]
        started = time.perf_counter()
        program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(request.source.encode(), request.program.encode(), 0, None, None))
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = _text(nvrtc, program)
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise self._refusal(request, status, log)
            cubin = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
            _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return Result(bytes(cubin), log, time.perf_counter() - started)

    def _refusal(self, request: Request, status, log: str) -> CompileError | ToolchainError:
        asked, values = f"compile {request.program} for {request.arch}", {"status": status.name, "version": self.toolchain.compiler.version}
        if status.name == "NVRTC_ERROR_COMPILATION":
            return CompileError(asked, "NVRTC must accept the source", values, "read the compiler's messages below", log)
        # Any other status, out of memory above all, says nothing about the source.
        return ToolchainError(asked, "NVRTC must finish", {**values, "log": log or "none"}, "free memory if it ran out, else see the log")

    def _load(self) -> None:
        # cuda.bindings searches fewer places than discovery does, but takes an NVRTC that this process has loaded already;
        # NVRTC itself finds its builtins beside it only when they are loaded too.
        library = self.toolchain.compiler.path
        try:
            for path in (*sorted(library.parent.glob("libnvrtc-builtins.so.*")), library):
                ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolchainError(
                "compile a kernel with NVRTC", "the library that was found must load", {"at": library, "error": error},
                f"install it again: {self.toolchain.compiler.remedy}",
            ) from None

    def _check_version(self, nvrtc) -> None:
        # Another package may have loaded its own NVRTC into this process first; its cubins must not get our key.
        status, major, minor = nvrtc.nvrtcVersion()
        version = self.toolchain.compiler.version
        if version.split(".")[:2] != [str(major), str(minor)]:
            raise ToolchainError(
                "compile a kernel with NVRTC", "the NVRTC loaded in this process must be the one that the cache key names",
                {"loaded": f"{major}.{minor}", "found": version, "at": self.toolchain.compiler.path},
                "warm up in a fresh process, or make the other package use the same NVRTC",
            )


def _text(nvrtc, program) -> str:
    log = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.decode(errors="replace").strip("\0 \n")


def _checked(nvrtc, answer: tuple) -> object:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError("compile a kernel", "NVRTC must finish", {"status": status.name}, "free memory; if it stays, report this")
    return values[0] if values else None
