"""Build and load, one process, no GPU: what is done once, what is remembered, what is refused."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from chord_jit import assets, knobs
from chord_jit.errors import CaptureError, CompileError, LaunchError, ToolchainError, UnsupportedDeviceError
from chord_jit.jit import compiler, counters, engine, loader, notices, toolchain
from chord_jit.jit.counters import Counters
from tests.toy.family import ASSETS, spec


def test_v20_counters_tell_compile_memory_and_store_apart(fake):
    origins = [engine.build(spec()).origin, engine.build(spec()).origin]
    engine.forget()
    origins.append(engine.build(spec()).origin)
    assert origins == ["compiled", "hit", "hit"]
    assert replace(counters.counters(), compile_seconds=0.0) == Counters(hits=2, compiles=1)
    counters.reset()
    assert counters.counters() == Counters()


def test_another_cache_folder_gets_its_own_entry(fake, tmp_path):
    engine.build(spec())
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "other")):
        assert engine.build(spec()).origin == "compiled"
    assert engine.build(spec()).origin == "hit"


def test_v10_32_threads_with_4_keys_compile_4_times(fake):
    slow = replace(fake, seconds=0.05)
    gate = threading.Barrier(32)

    def ask(index):
        gate.wait()
        return engine.build(spec(index % 4), slow)

    with ThreadPoolExecutor(32) as threads:
        entries = list(threads.map(ask, range(32)))
    assert len(fake.compiles()) == 4 and counters.counters().compiles == 4 and counters.counters().hits == 28
    assert sorted(entry.origin for entry in entries).count("compiled") == 4
    assert len({entry.digest for entry in entries}) == 4


def test_a_refused_compile_is_raised_again_and_never_stored(place, fake):
    stubborn = replace(fake, behaviour="refuse")
    seen = []
    for _ in range(3):
        with pytest.raises(CompileError, match="line 1: no") as caught:
            engine.build(spec(), stubborn)
        seen.append(caught.value)
    assert len(fake.compiles()) == 1 and counters.counters().failures == 1
    assert len({str(error) for error in seen}) == 1 and seen[0].log == seen[2].log == "line 1: no" and seen[1] is not seen[0]
    assert place.entries() == place.leftovers() == []
    engine.forget()
    assert engine.build(spec()).origin == "compiled"


def test_waiting_threads_get_the_refusal_too(fake):
    stubborn = replace(fake, behaviour="refuse", seconds=0.1)

    def ask(_):
        with pytest.raises(CompileError, match="line 1: no"):
            engine.build(spec(), stubborn)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))
    assert len(fake.compiles()) == 1


class Interrupted:
    """The first compile is interrupted while others wait for it; later ones work."""

    def __init__(self, inner):
        self.inner, self.first, self.started = inner, True, threading.Event()

    def compile(self, request):
        if self.first:
            self.first = False
            self.started.set()
            threading.Event().wait(0.1)
            raise KeyboardInterrupt
        return self.inner.compile(request)


def test_an_interrupted_compile_does_not_take_the_waiters_along(fake):
    shaky = Interrupted(fake)

    def first():
        with pytest.raises(KeyboardInterrupt):
            engine.build(spec(), shaky)

    def second():
        shaky.started.wait()
        return engine.build(spec(), shaky)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.submit(first), threads.submit(second)
        one.result()
        assert two.result().origin == "compiled"


def test_a_missing_toolchain_is_not_remembered(fake):
    class Absent:
        def compile(self, request):
            raise ToolchainError("compile", "a compiler must be there")

    for _ in range(2):
        with pytest.raises(ToolchainError):
            engine.build(spec(), Absent())
    assert engine.build(spec()).origin == "compiled"


@pytest.mark.parametrize("behaviour, complaint", [
    ("text", "ELF header"), ("ptx", "ELF header"), ("empty", "ELF header"), ("cut", "end inside"),
    ("nameless", "exactly once"), ("twice", "exactly once"),
])
def test_v28_v33_a_lying_compiler_publishes_nothing(place, fake, behaviour, complaint):
    with pytest.raises(CompileError, match=complaint):
        engine.build(spec(), replace(fake, behaviour=behaviour))
    assert place.entries() == place.leftovers() == [] and counters.counters().compiles == 0


def test_a_header_edited_during_the_compile_publishes_nothing(place, fake, tmp_path):
    """The cubin may hold the new text; the key names the old one."""
    shutil.copytree(ASSETS / "templates", tmp_path / "own/templates")
    shutil.copytree(ASSETS / "include", tmp_path / "own/include")
    header = tmp_path / "own/include/chord/toy_params.cuh"

    class Editor:
        def compile(self, request):
            header.write_text(header.read_text() + "// edited\n")
            return fake.compile(request)

    with assets.scope(tmp_path / "own"):
        assert engine.build(spec(), Editor()).origin == "compiled"
        assert place.entries() == []
        assert engine.build(spec()).origin == "compiled" and len(place.entries()) == 1


def test_a_toolchain_that_moves_while_the_process_runs_publishes_nothing(place, fake, tmp_path):
    """The key names the version that the process found first, the cubin may hold the headers of the next one."""
    notices.forget()
    header = tmp_path / "cutlass/version.h"
    header.parent.mkdir()
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n")
    with knobs.scope(CHORD_CUTLASS_DIR=str(tmp_path)):
        assert engine.build(spec(1)).origin == "compiled" and len(place.entries()) == 1
        header.write_text(header.read_text().replace("MINOR 2", "MINOR 3"))
        with pytest.warns(notices.CacheWarning, match="toolchain changed"):
            assert engine.build(spec(2)).origin == "compiled" and len(place.entries()) == 1
        toolchain._discover.cache_clear()
        assert engine.build(spec(2)).origin == "compiled" and len(place.entries()) == 2


class FakeDriver:
    """Stands in for the driver's functions and writes down the calls. ``refuses``: a function and the status it gives."""

    NAMES = (
        "cuInit", "cuLibraryLoadData", "cuLibraryGetKernel", "cuDeviceGet", "cuKernelSetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent", "cuKernelGetFunction", "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease",
    )

    def __init__(self, monkeypatch):
        from cuda.bindings import driver

        self.driver, self.calls, self.refuses, self.kernels = driver, [], {}, 0
        for name in self.NAMES:
            monkeypatch.setattr(driver, name, lambda *arguments, name=name: self.answer(name, arguments))

    def answer(self, name, arguments):
        self.calls.append((name, arguments))
        if name in self.refuses:
            raise self.refuses[name]
        status = self.driver.CUresult.CUDA_SUCCESS
        if name == "cuLibraryGetKernel":
            self.kernels += 1
            return status, self.driver.CUkernel(0x1000 + self.kernels)
        return (status, 5) if name.endswith(("Get", "Retain", "LoadData", "GetFunction", "PopCurrent")) else (status,)

    def names(self):
        return [name for name, _ in self.calls]


@pytest.fixture
def driver(fake, monkeypatch):
    monkeypatch.setattr(loader, "capturing", lambda device: False)
    return FakeDriver(monkeypatch)


def test_load_once_for_each_device_and_library_once(driver):
    first = engine.load(spec(), 0, 150000)
    assert first.handle == 0x1001 and first.entry.symbol == "chord_toy_add" and first.shared_bytes == 150000
    assert driver.names() == list(FakeDriver.NAMES)
    assert engine.load(spec(), 0, 150000) is first and engine.load(spec(), 0) is first
    assert len(driver.calls) == len(FakeDriver.NAMES)
    second = engine.load(spec(), 1)
    assert second.handle == first.handle and second.device == 1
    assert driver.names().count("cuLibraryLoadData") == 1 and driver.names().count("cuKernelGetFunction") == 2
    assert counters.counters().loads == 2 and counters.counters().compiles == 1


def test_the_driver_gets_the_verified_bytes_and_the_limit_of_the_device(driver):
    entry = engine.load(spec(), 3, 99).entry
    calls = dict(driver.calls)
    assert calls["cuLibraryLoadData"][0] == entry.cubin and calls["cuLibraryGetKernel"][1] == b"chord_toy_add"
    assert calls["cuDeviceGet"] == (3,) and calls["cuKernelSetAttribute"][1] == 99


def test_more_shared_memory_raises_the_limit_without_another_load(driver):
    engine.load(spec(), 0, 100)
    more = engine.load(spec(), 0, 200)
    assert more.shared_bytes == 200 and driver.names().count("cuLibraryLoadData") == 1
    assert driver.names().count("cuKernelSetAttribute") == 2


def test_a_warm_load_reads_nothing(driver, monkeypatch):
    kernel = engine.load(spec(), 0)
    monkeypatch.setattr(engine, "key_of", None)
    assert engine.load(spec(), 0) is kernel


def test_changed_knobs_ask_for_the_key_again_but_not_for_another_load(driver):
    kernel = engine.load(spec(), 0)
    with knobs.scope(CHORD_LOCK_TIMEOUT="7"):
        assert engine.load(spec(), 0) is kernel
    assert driver.names().count("cuLibraryLoadData") == 1


def test_threads_load_once(driver):
    with ThreadPoolExecutor(16) as threads:
        kernels = list(threads.map(lambda _: engine.load(spec(), 0), range(16)))
    assert len(set(map(id, kernels))) == 1 and driver.names().count("cuLibraryLoadData") == 1


def test_v40_capture_refuses_a_miss_before_any_work_and_allows_a_hit(driver, fake, monkeypatch):
    kernel = engine.load(spec(1), 0)
    monkeypatch.setattr(loader, "capturing", lambda device: True)
    before = list(driver.calls)
    with pytest.raises(CaptureError, match="warm_up") as caught:
        engine.load(spec(2), 0)
    assert str(spec(2)) in str(caught.value) and caught.value.values == {"device": 0}
    with pytest.raises(CaptureError):
        engine.load(spec(1), 1)
    assert len(fake.compiles()) == 1 and driver.calls == before
    with knobs.scope(CHORD_LOCK_TIMEOUT="7"):
        assert engine.load(spec(1), 0) is kernel


def test_nothing_captures_before_cuda_has_started(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.setattr("torch.cuda.device", None)
    assert loader.capturing(0) is False


@pytest.mark.parametrize("installed, named", [
    ((0, 12040), "12.4"), ((999, 0), "none"), (RuntimeError('Function "cuDriverGetVersion" not found'), "none"),
])  # fmt: skip
def test_v32_an_old_driver_is_named(driver, monkeypatch, installed, named):
    def version():
        if isinstance(installed, RuntimeError):
            raise installed
        return driver.driver.CUresult(installed[0]), installed[1]

    monkeypatch.setattr(driver.driver, "cuDriverGetVersion", version)
    driver.refuses["cuLibraryLoadData"] = RuntimeError('Function "cuLibraryLoadData" not found')
    with pytest.raises(UnsupportedDeviceError, match="branch 580") as caught:
        engine.load(spec(), 0)
    assert caught.value.values["function"] == "cuLibraryLoadData" and caught.value.values["CUDA of the driver"] == named


def test_a_refusing_driver_is_quoted_and_the_context_restored(driver, monkeypatch):
    monkeypatch.setattr(driver.driver, "cuKernelGetFunction", lambda *_: (driver.driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, 0))
    with pytest.raises(LaunchError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        engine.load(spec(), 0)
    assert driver.names()[-2:] == ["cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"]
    assert counters.counters().loads == 0


def test_a_child_after_fork_starts_with_nothing(driver, fake):
    parent = engine.load(spec(), 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            driver.calls.clear()
            kernel = engine.load(spec(), 0)
            text = f"{kernel is not parent} {driver.names().count('cuLibraryLoadData')} {len(fake.compiles())}"
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000) == b"True 1 1"
    assert engine.load(spec(), 0) is parent


def test_a_fork_during_a_compile_leaves_the_child_free(fake):
    slow, done = replace(fake, seconds=0.5), threading.Event()
    thread = threading.Thread(target=lambda: (engine.build(spec(), slow), done.set()))
    thread.start()
    while not fake.compiles():
        pass
    child = os.fork()
    if child == 0:
        with knobs.scope(CHORD_LOCK_TIMEOUT="20"):
            os._exit(0 if engine.build(spec(9), fake).origin == "compiled" else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert done.is_set()


def test_v39_maps_stay_bounded(driver):
    for turn in range(10_000):
        engine.load(spec(), 0)
        if turn % 40 == 0:
            knobs.refresh()
    state = vars(engine._engine)
    assert {name: len(value) for name, value in state.items() if isinstance(value, dict)} == {
        "_entries": 1, "_failures": 0, "_flights": 0, "_handles": 1, "_kernels": 1, "_recent": 1,
    }


def test_scope_ends(fake):
    with compiler.scope(replace(fake, behaviour="refuse")):
        pass
    assert compiler.current() is fake
