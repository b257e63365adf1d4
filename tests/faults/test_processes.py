"""What other processes do: race, die in the middle, hold a lock, leave one behind."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
import warnings

import pytest

from chord_jit import knobs
from chord_jit.jit import engine, files, locks, roots
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


def test_without_locks_every_process_builds_and_one_entry_stays(place, fake, tmp_path):
    """As on several nodes that share a cache: each keeps its own build, none needs to see the winner's."""
    processes = start(tmp_path, ORIGIN, count=4, seconds=0.2, CHORD_LOCK_DIR="/proc/nonexistent")
    assert set(answers(processes)) <= {"compiled", "hit"} and 1 <= len(fake.compiles()) <= 4
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
    threading.Timer(0.3, process.kill).start()
    started = time.monotonic()
    assert engine.build(spec()).origin == "compiled"
    assert 0.2 < time.monotonic() - started < 20
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
    with locks.held("a" * 64) as first:
        with knobs.scope(CHORD_LOCK_TIMEOUT="0.05"), pytest.warns(CacheWarning):
            with locks.held("a" * 64) as second:
                assert first and not second
        with locks.held("b" * 64) as other:
            assert other
    with locks.held("a" * 64) as again:
        assert again
    assert (roots.lock_root() / f"{'a' * 64}.lock").exists()


def test_locks_lie_in_the_runtime_folder_or_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    name = f"chord_jit-locks-{os.geteuid()}"
    for runtime, parent in ((str(tmp_path), tmp_path), (str(tmp_path / "absent"), tmp_path / "temporary"), (None, tmp_path / "temporary")):
        with knobs.scope(CHORD_LOCK_DIR=None, XDG_RUNTIME_DIR=runtime):
            assert roots.lock_root() == parent / name


def test_a_reader_sees_nothing_or_a_whole_entry(place, fake, monkeypatch):
    """A slow writer, and a reader that looks all the time without a lock."""
    real, digest, seen, done = files.write, engine.key_of(spec()).digest, set(), threading.Event()

    def slow(path, content):
        time.sleep(0.02)
        real(path, content)

    def read():
        while not done.is_set():
            entry = place.store.find(digest)
            seen.add(entry and entry.cubin)

    monkeypatch.setattr(files, "write", slow)
    reader = threading.Thread(target=read)
    reader.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = engine.build(spec())
        wait_for(lambda: entry.cubin in seen)
    done.set()
    reader.join()
    assert seen == {None, entry.cubin}


def test_staging_names_differ_even_when_chance_does_not(place, fake, monkeypatch):
    """Two writers that draw the same random name still write apart, and neither damages the other's entry."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
    key = engine.key_of(spec())
    entry = engine.build(spec())
    body = "import uuid\nuuid.uuid4 = lambda: uuid.UUID(int=7)\nprint(json.dumps(engine.build(spec(9)).origin))"
    processes = start(place.cache.parent, body)
    assert answers(processes) == ["compiled"] and place.store.find(key.digest).cubin == entry.cubin
    assert len(place.entries()) == 2


def test_processes_agree_on_the_bytes(place, fake, tmp_path):
    body = "import hashlib\nprint(json.dumps(hashlib.sha256(engine.build(spec()).cubin).hexdigest()))"
    found = answers(start(tmp_path, body, count=3))
    assert len(set(found)) == 1 and json.dumps(found)
