"""nvcc in a process of its own, by ``CHORD_COMPILER=nvcc``."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from chord_jit import knobs
from chord_jit.errors import CompileError
from chord_jit.jit.compiler import Request, Result, flags
from chord_jit.jit.toolchain import Toolchain

#: Variables that change what nvcc and its host compiler make, and that the key does not hold.
_IGNORED = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


@dataclass(frozen=True)
class Nvcc:
    """Compiles with the nvcc of ``toolchain``, which needs a host compiler beside it."""

    toolchain: Toolchain

    def compile(self, request: Request) -> Result:
        self.toolchain.require()
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="chord_jit-") as folder:
            # Relative names, so that no path of this machine reaches the cubin.
            (Path(folder) / request.program).write_text(request.source, encoding="utf-8")
            includes = [f"-I{path}" for path in (*request.includes, *self.toolchain.include_dirs)]
            command = [self.toolchain.compiler.path, *flags("nvcc", request.arch), *includes, "-o", "kernel.cubin", request.program]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace",
                env=knobs.child_environment(**dict.fromkeys(_IGNORED)),
            )
            log = (done.stderr + done.stdout).strip()
            if done.returncode != 0:
                raise CompileError(
                    f"compile {request.program} for {request.arch}", "nvcc must accept the source",
                    {"exit status": done.returncode, "nvcc": self.toolchain.compiler.path}, "read the compiler's messages below", log,
                )
            cubin = (Path(folder) / "kernel.cubin").read_bytes()
        return Result(cubin, log, time.perf_counter() - started)
