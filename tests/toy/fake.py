"""A compiler that needs no CUDA, counts over processes, and can lie."""

from __future__ import annotations

import os
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import CompileError
from chord_jit.jit.compiler import Request, Result

LOG = """ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
ptxas         .     96 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 99 bytes smem
ptxas info    : Function properties for {symbol}
ptxas         .     16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 1024 bytes smem, 540 bytes cmem[0]
"""


def cubin(*names: str, payload: bytes = b"") -> bytes:
    """A 64-bit CUDA ELF image whose symbol table holds these global functions and one local one."""
    strings, symbols = b"\0local\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 0x02, 0, 3, 0, 8)
    for name in names:
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 3, 0, 64)
        strings += name.encode() + b"\0"
    body = payload + strings + symbols
    first, second = 64 + len(payload), 64 + len(payload) + len(strings)
    tables = ((0, 0, 0, 0), (3, first, len(strings), 0), (2, second, len(symbols), 1), (1, 64, len(payload), 0))
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01A", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(tables), 1)
    sections = b"".join(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 1, 24) for kind, at, size, link in tables)
    return header + body + sections


@dataclass(frozen=True)
class FakeCompiler:
    """``ledger``: a file that gets one line for each compile of any process. ``seconds``: how long each takes.

    ``behaviour``: good, refuse, die, text, ptx, empty, cut, nameless or twice. ``meet``: none ends before so many have begun.
    """

    ledger: Path
    seconds: float = 0.0
    behaviour: str = "good"
    meet: int = 1

    def compile(self, request: Request) -> Result:
        with open(self.ledger, "a") as ledger:
            ledger.write(f"{os.getpid()} {request.symbol} {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}\n")
        time.sleep(self.seconds)
        deadline = time.monotonic() + 30
        while len(self.compiles()) < self.meet:
            time.sleep(0.002)
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.meet} compiles never ran at once")
        if self.behaviour == "refuse":
            raise CompileError("compile the toy", "the source must please", {"program": request.program}, "please it", "line 1: no")
        if self.behaviour == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        payload = request.source.encode() + request.arch.encode()
        whole = cubin(request.symbol, payload=payload)
        output = {
            "good": whole, "text": b"I compiled it, honestly", "ptx": b".version 9.0\n.target sm_90a\n", "empty": b"", "cut": whole[:-100],
            "nameless": cubin("chord_other", payload=payload), "twice": cubin(request.symbol, request.symbol, payload=payload),
        }[self.behaviour]
        return Result(output, LOG.format(symbol=request.symbol), self.seconds)

    def compiles(self) -> list[str]:
        """One line for each compile so far: process, symbol and the GPUs that it could see."""
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []
