"""Several interpreters at once, started together, for the faults that one process cannot make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PRELUDE = """
import json, os, signal, sys, time
from pathlib import Path
from chord_jit import assets, knobs
from chord_jit.jit import compiler, counters, engine, files, key, locks, store
from tests.toy.fake import FakeCompiler
from tests.toy.family import ASSETS, spec
folder = Path({folder!r})
fake = FakeCompiler(folder / "ledger", seconds={seconds!r}, meet={meet!r})
def wait(name):
    deadline = time.monotonic() + 30
    while not (folder / name).exists():
        time.sleep(0.002)
        assert time.monotonic() < deadline, name
(folder / f"ready.{{os.getpid()}}").touch()
wait("go")
with assets.scope(ASSETS), compiler.scope(fake):
    {body}
"""


def start(folder: Path, body: str, *, count: int = 1, seconds: float = 0.0, meet: int = 1, **environment: str) -> list[subprocess.Popen]:
    """``count`` interpreters that run ``body`` (it sees ``spec``, ``fake``, the JIT's modules) once all are ready.

    ``seconds`` and ``meet`` are the fake compiler's.
    The cache lies in ``folder/cache``, the locks in ``folder/locks``, the ledger of compiles in ``folder/ledger``.
    """
    script = _PRELUDE.format(folder=str(folder), seconds=seconds, meet=meet, body=body.replace("\n", "\n    "))
    settings = {"CHORD_CACHE_DIR": str(folder / "cache"), "CHORD_LOCK_DIR": str(folder / "locks"), "PYTHONPATH": str(ROOT), **environment}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    wait_for(lambda: all((folder / f"ready.{process.pid}").exists() or process.poll() is not None for process in processes))
    (folder / "go").touch()
    return processes


def answers(processes: list[subprocess.Popen]) -> list:
    """The JSON value that each process printed; every process must have ended well."""
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        results.append(json.loads(output))
    return results


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the other process did not get there"
        time.sleep(0.002)
