"""Loads a layer several times and says what each load took: python load.py FOLDER DEVICE REPEAT. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from chord_jit.formats.checkpoint import load_moe_layers  # noqa: E402

_EVERY_SECONDS = 0.005
_LAYER = 1


class HostPeak:
    """A context manager that watches memory of the process beyond mapped files. ``bytes``: the most that it grew by."""

    def __enter__(self) -> HostPeak:
        self.bytes, self._before, self._done = 0, _anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        # What grew since the last look and is still held would be missed otherwise.
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, _anonymous() - self._before)


def _anonymous() -> int:
    """Resident bytes that lie in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this kernel does not count RssAnon")


def load(folder: Path, where: torch.device) -> tuple[dict, int]:
    """One load, and the bytes of its result."""
    gpu = where.type == "cuda"
    if gpu:
        torch.cuda.synchronize(where)
        torch.cuda.reset_peak_memory_stats(where)
        before = torch.cuda.memory_allocated(where)
    with HostPeak() as host:
        begin = time.perf_counter()
        weights = load_moe_layers(folder, layers=[_LAYER], device=where)[_LAYER]
        if gpu:
            torch.cuda.synchronize(where)
        seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated(where) - before if gpu else None
    return {"seconds": round(seconds, 3), "host_bytes": host.bytes, "gpu_bytes": peak}, weights.gate_up.nbytes + weights.down.nbytes


def main(folder: str, where: str, repeat: str) -> int:
    target = torch.device(where)
    for path in Path(folder).glob("*.safetensors"):
        path.read_bytes()
    # A context and an allocator are the process's, not the load's.
    torch.zeros(1, device=target)
    loads, packed = [], 0
    for _ in range(int(repeat)):
        found, packed = load(Path(folder), target)
        loads.append(found)
    print(json.dumps({"packed_bytes": packed, "loads": loads}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
