"""nvcc in a process of its own, by ``CHORD_COMPILER=nvcc``."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from chord_jit import knobs
from chord_jit.errors import CompileError, ToolchainError
from chord_jit.jit.compiler import Request, Result, flags
from chord_jit.jit.toolchain import Toolchain

#: Variables that change what nvcc and its host compiler make, and that the key does not hold.
_IGNORED = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
#: What nvcc says of a tool of its own that a signal ended, the kernel's for want of memory among them.
_KILLED = "died due to signal"


@dataclass(frozen=True)
class Nvcc:
    """Compiles with the nvcc of ``toolchain``, which needs a host compiler beside it.

    An nvcc that does not start, or that a signal ends, it or a tool of its own, is a ``ToolchainError``: it says nothing about the source.
    """

    toolchain: Toolchain

    def compile(self, request: Request) -> Result:
        self.toolchain.require()
        started = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory(prefix="chord_jit-") as folder:
                cubin, log = self._compile(request, Path(folder))
        except OSError as error:
            raise self._broken(request, error) from None
        return Result(cubin, log, time.perf_counter() - started)

    def _compile(self, request: Request, folder: Path) -> tuple[bytes, str]:
        # Relative names, so that no path of this machine reaches the cubin.
        (folder / request.program).write_text(request.source, encoding="utf-8")
        includes = [f"-I{path}" for path in (*request.includes, *self.toolchain.include_dirs)]
        command = [self.toolchain.compiler.path, *flags("nvcc", request.arch), *includes, "-o", "kernel.cubin", request.program]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", env=knobs.child_environment(**dict.fromkeys(_IGNORED))
        )
        log = (done.stderr + done.stdout).strip()
        if done.returncode < 0 or _KILLED in log:
            raise self._broken(request, f"signal {-done.returncode} ended it" if done.returncode < 0 else log)
        if done.returncode != 0:
            raise CompileError(
                f"compile {request.program} for {request.arch}", "nvcc must accept the source",
                {"exit status": done.returncode, "nvcc": self.toolchain.compiler.path}, "read the compiler's messages below", log,
            )
        return (folder / "kernel.cubin").read_bytes(), log

    def _broken(self, request: Request, problem: object) -> ToolchainError:
        return ToolchainError(
            f"compile {request.program} for {request.arch}", "nvcc must start, finish and find room in the temporary folder",
            {"nvcc": self.toolchain.compiler.path, "problem": problem}, "run it by hand; free memory and disk, or unset CHORD_COMPILER",
        )
