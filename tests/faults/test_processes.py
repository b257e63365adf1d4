"""What other processes do: race, die in the middle, hold a lock, leave one behind."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings

import pytest

from chord_jit import knobs
from chord_jit.jit import engine, locks, roots
from chord_jit.jit.notices import CacheWarning
from tests.toy.family import spec
from tests.toy.processes import answers, start, wait_for

ORIGIN = "print(json.dumps(engine.build(spec()).origin))"


def test_v6_8_processes_with_one_key_compile_once(place, fake, tmp_path):
    origins = answers(start(tmp_path, ORIGIN, count=8, seconds=0.3))
    assert sorted(origins) == ["compiled"] + ["hit"] * 7 and len(fake.compiles()) == 1
    assert len(place.entries()) == 1 and place.leftovers() == []


def test_v5_16_processes_make_the_root_at_once(place, tmp_path):
    body = "print(json.dumps(store.user_store().usable()))"
    assert answers(start(tmp_path, body, count=16, CHORD_CACHE_DIR=str(tmp_path / "a" / "b" / "c"))) == [True] * 16


#: one compile or its outcome, and every notice that the process gave, since a lost entry is only a notice
BUILT_AND_SAID = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    origin = engine.build(spec()).origin
print(json.dumps([origin, [str(one.message) for one in said if "no compile locks" not in str(one.message)]]))"""


@pytest.mark.parametrize("chance", ["", "import uuid\nuuid.uuid4 = lambda: uuid.UUID(int=7)"], ids=["any names", "v3 equal chance"])
def test_v1_v3_8_processes_that_compile_and_publish_at_once(place, fake, tmp_path, chance):
    """As on nodes that share a cache but no lock: each keeps its own build, none needs the winner's, and no name is shared."""
    answered = answers(start(tmp_path, chance + BUILT_AND_SAID, count=8, meet=8, CHORD_LOCK_DIR="/proc/nonexistent"))
    assert answered == [["compiled", []]] * 8 and len(fake.compiles()) == 8
    assert len(place.entries()) == 1 and place.leftovers() == []
    assert engine.build(spec()).origin == "hit"


#: the writer stops for ever after this many calls of files.write; it is killed there
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_writer_killed_while_it_publishes(place, fake, tmp_path, written):
    body = f"""
real, count = files.write, 0
def write(path, content):
    global count
    if count < {written}:
        real(path, content)
    else:
        with open(path, "wb") as file:
            file.write(content[:10])
        stop()
    count += 1
def stop(*_):
    (folder / "inside").touch()
    time.sleep(60)
files.write = write
if {written} == 3:
    files.sync_folder = stop
engine.build(spec())"""
    (process,) = start(tmp_path, body)
    wait_for((tmp_path / "inside").exists)
    assert place.entries() == []
    process.kill()
    process.communicate()
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.build(spec()).origin == "compiled"
    assert time.monotonic() - started < 20
    assert len(place.entries()) == 1 and place.store.find(engine.key_of(spec()).digest)


def test_v8_a_killed_holder_frees_its_lock(place, fake, tmp_path):
    body = """
with locks.held(key.key_of(spec()).digest) as alone:
    (folder / "inside").touch()
    time.sleep(60 if alone else 0)"""
    (process,) = start(tmp_path, body)
    wait_for((tmp_path / "inside").exists)
    killed = []
    threading.Timer(0.3, lambda: killed.append((time.monotonic(), process.kill())[0])).start()
    assert engine.build(spec()).origin == "compiled"
    assert killed and time.monotonic() - killed[0] < 2
    process.communicate()


def test_a_living_holder_is_waited_for_only_so_long(place, fake, tmp_path):
    body = """
with locks.held(key.key_of(spec()).digest):
    (folder / "inside").touch()
    wait("enough")
print(json.dumps("done"))"""
    processes = start(tmp_path, body)
    wait_for((tmp_path / "inside").exists)
    with knobs.scope(CHORD_LOCK_TIMEOUT="0.2"), pytest.warns(CacheWarning, match="CHORD_LOCK_TIMEOUT"):
        assert engine.build(spec()).origin == "compiled"
    assert len(place.entries()) == 1
    (tmp_path / "enough").touch()
    assert answers(processes) == ["done"]


def test_v9_a_lock_file_left_behind_blocks_nobody(place, fake):
    path = roots.lock_root() / f"{engine.key_of(spec()).digest}.lock"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("999999")
    os.utime(path, (1, 1))
    with knobs.scope(CHORD_LOCK_TIMEOUT="60"):
        started = time.monotonic()
        assert engine.build(spec()).origin == "compiled"
    assert time.monotonic() - started < 20


def test_v8_locks_and_cache_do_not_share_a_folder(place, fake):
    engine.build(spec())
    assert list(place.cache.rglob("*.lock")) == [] and len(list(place.locks.rglob("*.lock"))) == 1


def test_a_lock_folder_of_somebody_else_is_not_used(place, fake):
    roots.lock_root().mkdir(parents=True)
    roots.lock_root().chmod(0o777)
    with pytest.warns(CacheWarning, match="no compile locks"):
        assert engine.build(spec()).origin == "compiled"
    assert list(roots.lock_root().iterdir()) == []


def test_v8_one_holder_at_a_time_and_the_file_stays(place):
    path = roots.lock_root() / f"{'a' * 64}.lock"
    with locks.held("a" * 64) as first:
        with knobs.scope(CHORD_LOCK_TIMEOUT="0.05"), pytest.warns(CacheWarning):
            with locks.held("a" * 64) as second:
                assert first and not second
        with locks.held("b" * 64) as other:
            assert other
    before = path.stat().st_ino
    with locks.held("a" * 64) as again:
        assert again
    assert path.stat().st_ino == before


def test_locks_lie_in_the_runtime_folder_or_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    name = f"chord_jit-locks-{os.geteuid()}"
    for runtime, parent in ((str(tmp_path), tmp_path), (str(tmp_path / "absent"), tmp_path / "temporary"), (None, tmp_path / "temporary")):
        with knobs.scope(CHORD_LOCK_DIR=None, XDG_RUNTIME_DIR=runtime):
            assert roots.lock_root() == parent / name


def test_v2_a_reader_sees_nothing_or_a_whole_entry(place, fake, tmp_path):
    """A writer in another process that writes byte by byte, and a reader that looks all the time without a lock."""
    body = """
real = files.write
def slow(path, content):
    with open(path, "wb") as file:
        os.chmod(path, 0o600)
        for part in (content[:1], content[1:-1], content[-1:]):
            file.write(part)
            file.flush()
            time.sleep(0.01)
files.write = slow
print(json.dumps(engine.build(spec()).origin))"""
    digest, seen = engine.key_of(spec()).digest, []
    processes = start(tmp_path, body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while not seen or seen[-1] is None:
            seen.append(place.store.find(digest))
            assert seen[-1] or len(seen) < 10**6
    assert answers(processes) == ["compiled"] and seen[0] is None
    assert seen[-1] == place.store.find(digest)


def test_v20_a_hit_starts_no_process_and_no_compiler(place, fake, tmp_path):
    """With nvcc its version is asked for once in a process, however many kernels follow."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.9, V12.9.86\n")
    nvcc.chmod(0o755)
    body = """
started = []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        started.append(str(arguments[0]))
sys.addaudithook(hook)
origins = [engine.build(spec(scale)).origin for scale in range(24)]
done = counters.counters()
print(json.dumps([sorted(set(origins)), started, done.hits, done.compiles]))"""
    for kind, processes in (("nvrtc", []), ("nvcc", [str(nvcc)])):
        with knobs.scope(CHORD_COMPILER=kind, CHORD_NVCC=str(nvcc)):
            for scale in range(24):
                engine.build(spec(scale))
        assert answers(start(tmp_path, body, CHORD_COMPILER=kind, CHORD_NVCC=str(nvcc))) == [[["hit"], processes, 24, 0]]
    assert len(fake.compiles()) == 48


def test_processes_agree_on_the_bytes(place, fake, tmp_path):
    body = "import hashlib\nprint(json.dumps(hashlib.sha256(engine.build(spec()).cubin).hexdigest()))"
    found = answers(start(tmp_path, body, count=3))
    assert len(set(found)) == 1 and json.dumps(found)
