"""From a spec to an entry, and from an entry to a kernel on a device: each step once per process and key.

Guaranteed: of all threads and processes of a node that ask for one key, one compiles it (while the lock folder works);
an entry that any root has is found without a lock; one that is compiled is handed out only if its cubin holds the kernel;
a refused compile is raised again, equal, for as long as the process lives, and never stored; a child after ``fork`` starts
with nothing, since handles and locks are its parent's.
"""

from __future__ import annotations

import copy
import os
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from chord_jit import knobs
from chord_jit.errors import CaptureError, CompileError, ToolchainError
from chord_jit.jit import compiler as compilers
from chord_jit.jit import counters, elf, eviction, loader, locks, prebuilt, report, toolchain
from chord_jit.jit.entry import Entry
from chord_jit.jit.key import Key, key_of
from chord_jit.jit.loader import Kernel
from chord_jit.jit.notices import once
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.store import Store, stores


class Engine:
    """The state of one process. Every map is bounded by the number of distinct kernels and devices."""

    def __init__(self):
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        self._entries: dict[tuple[Path, str], Entry] = {}
        self._failures: dict[str, CompileError] = {}
        self._flights: dict[tuple[Path, str], Future] = {}
        self._handles: dict[str, int] = {}
        self._kernels: dict[tuple[str, int], Kernel] = {}
        self._recent: dict[tuple[KernelSpec, int], tuple[int, Kernel]] = {}

    def build(self, spec: KernelSpec, compiler: compilers.Compiler) -> Entry:
        key, places = key_of(spec), stores()
        at = (places[0].root, key.digest)
        with self._lock:
            if at in self._entries:
                counters.add(hits=1)
                return self._entries[at]
            if key.digest in self._failures:
                raise copy.copy(self._failures[key.digest])
            flight = self._flights.get(at)
            mine = flight is None
            if mine:
                flight = self._flights[at] = Future()
        if not mine:
            flight.result()
            return self.build(spec, compiler)
        try:
            entry = self._find_or_compile(spec, key, places, compiler)
            with self._lock:
                self._entries[at] = replace(entry, origin="hit")
            return entry
        except CompileError as error:
            with self._lock:
                self._failures[key.digest] = error
            raise
        finally:
            # Waiters look again: at the entry, at the failure, or, if this thread was interrupted, for a turn of their own.
            with self._lock:
                del self._flights[at]
            flight.set_result(None)

    def _find_or_compile(self, spec: KernelSpec, key: Key, places: tuple[Store, ...], compiler: compilers.Compiler) -> Entry:
        """No lock is taken where any place has the entry."""
        user, *others = places
        for store in places:
            entry = store.find(key.digest)
            if entry is not None:
                return _taken(store, entry)
        for store in others:
            prebuilt.explain(store, key.fields)
        if not user.usable():
            return _compile(spec, key, places, compiler)
        with locks.held(key.digest) as alone:
            entry = user.find(key.digest, repair=alone)
            if entry is not None:
                return _taken(user, entry)
            entry = _compile(spec, key, places, compiler)
            # A header that was edited since its content, or its version, went into the key may be in the cubin: not to be kept.
            if not toolchain.unchanged():
                once("toolchain", "kernel cache: the toolchain changed since this process first looked; what it compiles is not kept")
            elif key_of(spec).digest == key.digest:
                # Without the lock nobody has set a damaged entry aside yet, and it would pass for another writer's.
                if not alone:
                    user.find(key.digest, repair=True)
                user.publish(entry, key)
            return entry

    def load(self, spec: KernelSpec, device: int, shared_bytes: int) -> Kernel:
        now, (generation, kernel) = knobs.generation, self._recent.get((spec, device), (None, None))
        if generation == now and kernel.shared_bytes >= shared_bytes:
            return kernel
        kernel = self._kernels.get((key_of(spec).digest, device))
        if kernel is None or kernel.shared_bytes < shared_bytes:
            kernel = self._load(spec, device, shared_bytes)
        self._recent[spec, device] = now, kernel
        return kernel

    def _load(self, spec: KernelSpec, device: int, shared_bytes: int) -> Kernel:
        if loader.capturing(device):
            raise CaptureError(
                f"load the kernel {spec}", "a kernel must be loaded before a CUDA graph captures its launch", {"device": device},
                "call chord_jit.warm_up([...]) with this problem, and run it once on this device, before the capture",
            )
        entry = self.build(spec, compilers.current())
        with self._load_lock:
            kernel = self._kernels.get((entry.digest, device))
            if kernel is None or kernel.shared_bytes < shared_bytes:
                if entry.digest not in self._handles:
                    self._handles[entry.digest] = loader.load_library(entry)
                kernel = loader.bind(self._handles[entry.digest], entry, device, shared_bytes)
                self._kernels[entry.digest, device] = kernel
                counters.add(loads=1)
        return kernel


def _taken(store: Store, entry: Entry) -> Entry:
    store.used(entry.digest)
    counters.add(hits=1)
    return entry


def _compile(spec: KernelSpec, key: Key, places: tuple[Store, ...], compiler: compilers.Compiler) -> Entry:
    try:
        try:
            result = compiler.compile(compilers.request(spec, key.source))
        except ToolchainError as error:
            raise ToolchainError(
                f"{error.asked}, for {spec}", error.rule,
                {**error.values, "key": key.digest[:16], "not found in": ", ".join(str(store.root) for store in places)},
                f"{error.remedy}; or bring the kernel: name a folder that has it in CHORD_PREBUILT, or install a wheel of kernels",
            ) from None
        try:
            found = elf.kernels(result.cubin)
        except ValueError as error:
            raise CompileError(f"compile {spec}", "the compiler must give a cubin", {"output": error}, "report this", result.log) from None
        if found.count(spec.symbol) != 1:
            raise CompileError(
                f"compile {spec}", "the cubin must hold the kernel exactly once", {"kernel": spec.symbol, "found": found},
                f'declare the kernel extern "C" under the name {spec.symbol} in its template', result.log,
            )
    except CompileError:
        counters.add(failures=1)
        raise
    counters.add(compiles=1, compile_seconds=result.seconds)
    return Entry(result.cubin, spec.symbol, report.facts(result.log, spec.symbol), key.digest, "compiled")


_engine = Engine()


def build(spec: KernelSpec, compiler: compilers.Compiler | None = None) -> Entry:
    """The entry of ``spec``: from memory, from the store, or compiled (by ``compiler``, else by the knobs' one). No GPU needed.

    Raises ``CompileError`` with the compiler's log, ``ToolchainError`` when there is nothing to compile with.
    """
    return _engine.build(spec, compiler or compilers.current())


def load(spec: KernelSpec, device: int, shared_bytes: int = 0) -> Kernel:
    """The kernel of ``spec`` on CUDA device ``device``, for launches with up to ``shared_bytes`` of dynamic shared memory.

    Raises ``CaptureError``, before any compile or load, when it is not loaded yet and the device's current stream is
    being captured; ``UnsupportedDeviceError`` without a driver; ``LaunchError`` when the driver refuses the cubin; and what
    ``build`` raises.
    """
    return _engine.load(spec, device, shared_bytes)


def forget() -> None:
    """Start with nothing in memory, as a new process would. Kernels already handed out stay valid."""
    global _engine
    _engine = Engine()
    eviction.forget()


os.register_at_fork(after_in_child=forget)
