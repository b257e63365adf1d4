"""What disks do: lost, cut and changed bytes, full and read-only file systems, folders that vanish."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from chord_jit import knobs
from chord_jit.errors import CompileError
from chord_jit.jit import counters, engine, files, store
from chord_jit.jit.notices import CacheWarning
from tests.toy.family import spec
from tests.toy.fixtures import forget
from tests.toy.processes import ROOT

NAMES = ("kernel.cubin", "kernel.cu", "entry.json")


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def _empty(path):
    path.write_bytes(b"")


def _grow(path):
    path.write_bytes(path.read_bytes() + b"\0")


def _remove(path):
    path.unlink()


def assert_replaced(place, good):
    """The entry of ``good`` was set aside once, and the next process finds a whole one in its place."""
    assert [path.name.split(".")[0] for path in (place.root / ".bad").iterdir()] == [good.digest]
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.build(spec()).origin == "hit"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", [_cut, _flip, _empty, _grow, _remove], ids=lambda fault: fault.__name__[1:])
def test_a_damaged_entry_is_set_aside_and_built_again(place, fake, name, fault):
    good = engine.build(spec())
    (folder,) = place.entries()
    fault(folder / name)
    forget()
    with pytest.warns(CacheWarning) as caught:
        built = engine.build(spec())
    assert len(caught) == 1 and "is damaged" in str(caught[0].message) and str(folder) in str(caught[0].message)
    assert built.origin == "compiled" and built.cubin == good.cubin and len(fake.compiles()) == 2
    assert_replaced(place, good)


def test_a_damaged_entry_is_replaced_without_a_lock_folder_too(place, fake):
    """Or every process to come would warn and compile again."""
    with knobs.scope(CHORD_LOCK_DIR="/proc/nonexistent"):
        with pytest.warns(CacheWarning, match="no compile locks"):
            good = engine.build(spec())
        _flip(place.entries()[0] / "kernel.cubin")
        forget()
        with pytest.warns(CacheWarning) as caught:
            assert engine.build(spec()).origin == "compiled"
        assert sorted("is damaged" in str(one.message) for one in caught) == [False, True]
    assert_replaced(place, good)


def test_a_damaged_entry_stays_where_it_is_while_there_is_nothing_to_replace_it(place, fake):
    """Without a lock another process may be about to replace it."""
    engine.build(spec())
    _flip(place.entries()[0] / "kernel.cubin")
    forget()
    with knobs.scope(CHORD_LOCK_DIR="/proc/nonexistent"), pytest.warns(CacheWarning), pytest.raises(CompileError):
        engine.build(spec(), replace(fake, behaviour="refuse"))
    assert len(place.entries()) == 1 and not (place.root / ".bad").exists()


def test_a_damaged_entry_that_cannot_be_moved_is_still_not_used(place, fake, monkeypatch):
    good = engine.build(spec())
    _flip(place.entries()[0] / "kernel.cubin")
    forget()
    monkeypatch.setattr(store.Path, "rename", _refuse(errno.EBUSY))
    with pytest.warns(CacheWarning):
        built = engine.build(spec())
    assert built.origin == "compiled" and built.cubin == good.cubin


def _refuse(number):
    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def _write_half(path, content):
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


#: what fails, where, how; the build works all the same
WRITES = (
    ("full disk in the middle of a file", files, "write", _write_half),
    ("full disk at the sync", os, "fsync", _refuse(errno.ENOSPC)),
    ("quota", files, "write", _refuse(errno.EDQUOT)),
    ("read-only", files.Path, "mkdir", _refuse(errno.EROFS)),
    ("not allowed", files.Path, "mkdir", _refuse(errno.EACCES)),
    ("stale network handle", files.Path, "rename", _refuse(errno.ESTALE)),
    ("removed by a sweeper", files.Path, "rename", _refuse(errno.ENOENT)),
)


@pytest.mark.parametrize("name, owner, attribute, fault", WRITES, ids=[case[0] for case in WRITES])
def test_a_disk_that_refuses_costs_the_entry_only(place, fake, monkeypatch, name, owner, attribute, fault):
    # The locks are on another disk than the cache.
    place.locks.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, fault)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            entries = [engine.build(spec(scale)) for scale in (1, 2, 3)]
    assert [entry.origin for entry in entries] == ["compiled"] * 3
    about_the_cache = [str(warning.message) for warning in caught if "not kept" in str(warning.message)]
    assert len(about_the_cache) == 1 and "CHORD_CACHE_DIR" in about_the_cache[0]
    assert place.entries() == place.leftovers() == []
    assert engine.build(spec(1)).origin == "hit"
    forget()
    assert engine.build(spec(1)).origin == "compiled" and len(place.entries()) == 1


@pytest.mark.parametrize("folder", ["/proc/nonexistent", "/dev/null", "/dev/null/cache"])
def test_v13_a_root_that_cannot_be_made(fake, folder):
    with knobs.scope(CHORD_CACHE_DIR=folder):
        with pytest.warns(CacheWarning) as caught:
            assert engine.build(spec(1)).origin == engine.build(spec(2)).origin == "compiled"
        assert len(caught) == 1
        assert engine.build(spec(1)).origin == "hit"


def test_v13_a_read_only_root_is_read(place, fake, monkeypatch):
    engine.build(spec(1))
    forget()
    # As a read-only mount answers, to every user.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert engine.build(spec(1)).origin == "hit"
    with pytest.warns(CacheWarning, match="read-only"):
        assert engine.build(spec(2)).origin == "compiled"
    assert len(place.entries()) == 1 and len(fake.compiles()) == 2


def test_processes_on_a_read_only_root_do_not_wait_for_each_other(place, fake, monkeypatch):
    """They could not share the result, so a lock would only put them in a row."""
    monkeypatch.setattr(engine.locks, "held", None)
    with knobs.scope(CHORD_CACHE_DIR="/proc/nonexistent"), pytest.warns(CacheWarning):
        assert engine.build(spec()).origin == "compiled"


class Lagging:
    """A function of ``os`` that fails once, for a path with ``part`` in it or in the open folder that it is relative to."""

    def __init__(self, function, part, number):
        self.function, self.part, self.number, self.failed = function, part, number, False

    def __call__(self, path, *arguments, dir_fd=None, **options):
        whole = str(path) if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        if self.part in whole and not self.failed:
            self.failed = True
            raise OSError(self.number, os.strerror(self.number), str(path))
        return self.function(path, *arguments, **options, **({} if dir_fd is None else {"dir_fd": dir_fd}))


@pytest.mark.parametrize("name", ["rmdir", "unlink"])
def test_v4_a_copy_that_a_network_file_system_holds_on_to_troubles_nobody(place, fake, monkeypatch, name):
    """Another writer was faster, so that our copy has to go, and a file in use keeps its name and its folder."""
    lagging = Lagging(getattr(os, name), "staging/", errno.EBUSY)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = engine.build(spec())
        patch.setattr(os, name, lagging)
        place.store.publish(entry, engine.key_of(spec()))
    assert lagging.failed and len(place.entries()) == 1
    forget()
    assert engine.build(spec()).origin == "hit"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE], ids=["ENOENT", "ESTALE"])
@pytest.mark.parametrize("name", NAMES)
def test_v4_a_file_that_a_network_file_system_does_not_show_yet_costs_no_entry(place, fake, monkeypatch, name, number):
    engine.build(spec())
    forget()
    lagging = Lagging(os.open, name, number)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(os, "open", lagging)
        assert engine.build(spec()).origin == "hit"
    assert lagging.failed and len(fake.compiles()) == 1
    assert len(place.entries()) == 1 and not (place.root / ".bad").exists()


def test_a_root_that_vanishes_is_made_again(place, fake):
    engine.build(spec(1))
    shutil.rmtree(place.cache)
    assert engine.build(spec(1)).origin == "hit"
    assert engine.build(spec(2)).origin == "compiled"
    assert len(place.entries()) == 1
    forget()
    assert engine.build(spec(1)).origin == "compiled" and len(place.entries()) == 2


def test_v7_an_entry_that_vanishes_between_look_and_lock_is_built(place, fake, monkeypatch):
    engine.build(spec())
    forget()
    looks = []

    def find(self, digest, *, repair=False):
        looks.append(repair)
        entry = real(self, digest, repair=repair)
        shutil.rmtree(place.root, ignore_errors=True)
        return entry if repair else None

    real = store.Store.find
    monkeypatch.setattr(store.Store, "find", find)
    assert engine.build(spec()).origin == "compiled" and looks == [False, True]


def test_an_entry_is_on_the_disk_before_its_name_is(place, fake, monkeypatch):
    """Every file and the staging folder are synced, then one rename shows them, then the names above are synced."""
    steps = []
    rename, sync = store.Path.rename, os.fsync

    def seen_rename(self, target):
        assert not target.exists() and {path.name for path in self.iterdir()} == set(NAMES)
        steps.append("rename")
        return rename(self, target)

    def seen_sync(handle):
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")).split(".", 1)[-1])
        sync(handle)

    monkeypatch.setattr(store.Path, "rename", seen_rename)
    monkeypatch.setattr(os, "fsync", seen_sync)
    digest = engine.build(spec()).digest
    before, after = steps[: steps.index("rename")], steps[steps.index("rename") + 1 :]
    assert sorted(before[:3]) == ["cu", "cubin", "json"] and before[3].startswith(str(os.getpid())) and len(before) == 4
    assert after == [digest[:2], place.root.name]


def test_a_published_entry_never_replaces_a_good_one(place, fake):
    entry = engine.build(spec())
    (folder,) = place.entries()
    before = (folder.stat().st_ino, (folder / "entry.json").stat().st_mtime_ns)
    place.store.publish(entry, engine.key_of(spec()))
    assert (folder.stat().st_ino, (folder / "entry.json").stat().st_mtime_ns) == before and place.leftovers() == []


def test_v13_no_home_at_all(tmp_path):
    """Import works and a kernel is built; one notice says that it is not kept."""
    script = (
        "import chord_jit, warnings\nfrom chord_jit import assets\nfrom chord_jit.jit import engine, compiler\n"
        "from tests.toy.fake import FakeCompiler\nfrom tests.toy.family import ASSETS, spec\nfrom pathlib import Path\n"
        f"with assets.scope(ASSETS), compiler.scope(FakeCompiler(Path({str(tmp_path / 'ledger')!r}))):\n"
        "    print(engine.build(spec()).origin, engine.build(spec(5)).origin)\n"
    )
    environment = {"HOME": "/proc/nonexistent", "PYTHONPATH": str(ROOT), "CHORD_LOCK_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compiled compiled\n" and done.stderr.count("CacheWarning") == 1


def test_counters_see_the_rebuild(place, fake):
    engine.build(spec())
    _flip(place.entries()[0] / "kernel.cubin")
    forget()
    with pytest.warns(CacheWarning):
        engine.build(spec())
    assert (counters.counters().hits, counters.counters().compiles) == (0, 1)
