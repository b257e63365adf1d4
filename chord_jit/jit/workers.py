"""Compilers in processes of their own: they see no GPU, and one that dies takes nothing along.

Each is a fresh interpreter that imports this package alone. Nothing of the calling script is run again, so a pool works from
any script, notebook or REPL, without a ``__main__`` guard.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from chord_jit import knobs
from chord_jit.errors import ToolchainError
from chord_jit.jit.compiler import Compiler, Request, Result


def interpreter() -> list[str]:
    """Command of a Python that imports nothing from the current folder: it may be anybody's, or another checkout."""
    return [sys.executable, "-P"]


def search_path() -> str:
    """``PYTHONPATH`` by which a child imports what this process does."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


class _Worker:
    def __init__(self):
        self._pipe, theirs = Pipe()
        command = [*interpreter(), "-c", "from chord_jit.jit import workers; workers.serve()", str(theirs.fileno())]
        # A session of its own: Ctrl-C is for the caller, who then closes the pipe.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env=knobs.child_environment(CUDA_VISIBLE_DEVICES="", PYTHONPATH=search_path()),
        )
        theirs.close()

    def compile(self, compiler: Compiler, request: Request) -> Result:
        try:
            self._pipe.send((compiler, request))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            raise ToolchainError(
                f"compile {request.program} for {request.arch}", "the compiling process must live to answer",
                {"exit status": self._process.returncode}, "see its messages above; a status of -9 means that memory ran out",
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def alive(self) -> bool:
        return not self._pipe.closed

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


class Pool:
    """A ``Compiler`` that lets at most as many processes run as threads call it. They start when they are first needed."""

    def __init__(self, compiler: Compiler):
        self._compiler = compiler
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def compile(self, request: Request) -> Result:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _Worker()
        try:
            return worker.compile(self._compiler, request)
        finally:
            if worker.alive:
                self._idle.put(worker)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_) -> None:
        while not self._idle.empty():
            self._idle.get().close()


def serve() -> None:
    """The life of a worker: compile what comes through the pipe until it closes."""
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            compiler, request = pipe.recv()
        except EOFError:
            return
        try:
            answer = compiler.compile(request)
        except Exception as error:
            answer = error
        pipe.send(answer)
