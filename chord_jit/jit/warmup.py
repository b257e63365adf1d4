"""Build many kernels before they are needed, as fast as the machine's cores allow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from chord_jit.errors import ChordError, InputError
from chord_jit.jit import compiler, counters, engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.store import stores
from chord_jit.jit.workers import Pool


@dataclass(frozen=True)
class WarmupReport:
    """``compiled``, ``hit``, ``failed``: numbers of distinct kernels. ``seconds``: wall time. ``errors``: one for each failed kernel."""

    compiled: int
    hit: int
    failed: int
    seconds: float
    errors: tuple[tuple[KernelSpec, ChordError], ...]

    def __str__(self) -> str:
        total = self.compiled + self.hit + self.failed
        lines = [f"{total} kernels in {self.seconds:.1f} s: {self.compiled} compiled, {self.hit} found, {self.failed} failed"]
        return "\n".join(lines + [f"{spec}\n{error}" for spec, error in self.errors])


def warm_up(
    specs: Iterable[KernelSpec],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int, KernelSpec], None] | None = None,
    digests: Mapping[KernelSpec, str] | None = None,
) -> WarmupReport:
    """Build every kernel of ``specs``; only those that the cache lacks reach a compiler. No GPU needed.

    ``jobs``: compiling processes at once (default: the cores this process may use). ``progress(done, total, spec)`` is
    called in the calling thread after each kernel. A kernel that fails does not stop the others; it is in the report.
    ``digests``: keys that the caller knows; a kernel whose entry is there under its key, every byte checked, needs no more.
    """
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise InputError("warm up", "jobs must be an int of at least 1", {"jobs": jobs}, "leave jobs out to use every core of this process")
    wanted = list(dict.fromkeys(specs))
    started = time.perf_counter()
    known = {} if digests is None else digests
    present = [spec for spec in wanted if spec in known and _kept(known[spec])]
    there = set(present)
    counters.add(hits=len(present))
    origins = ["hit"] * len(present)
    if progress:
        for done, spec in enumerate(present, 1):
            progress(done, len(wanted), spec)
    errors: list[tuple[KernelSpec, ChordError]] = []
    threads = ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)), thread_name_prefix="chord-warmup")
    with Pool(compiler.current()) as pool, threads:
        tasks = {threads.submit(engine.build, spec, pool): spec for spec in wanted if spec not in there}
        try:
            for done, task in enumerate(as_completed(tasks), len(present) + 1):
                try:
                    origins.append(task.result().origin)
                except ChordError as error:
                    errors.append((tasks[task], error))
                if progress:
                    progress(done, len(wanted), tasks[task])
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return WarmupReport(origins.count("compiled"), origins.count("hit"), len(errors), time.perf_counter() - started, tuple(errors))


def _kept(digest: str) -> bool:
    """Whether a store has the entry, whole. It then counts as used, as by a call."""
    for store in stores():
        if store.find(digest) is not None:
            store.used(digest)
            return True
    return False
