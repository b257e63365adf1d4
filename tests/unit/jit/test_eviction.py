"""What goes when the user's root is above its limit, what never goes, what is swept, and what it costs below the limit."""

from __future__ import annotations

import errno
import os
import shutil
import time
import warnings

import pytest

from chord_jit import knobs
from chord_jit.jit import catalog, engine, eviction, files, layout
from chord_jit.jit.key import key_of
from chord_jit.jit.notices import CacheWarning
from tests.toy.family import spec
from tests.toy.fixtures import forget
from tests.toy.processes import answers, start

LONG_AGO = time.time() - 1e6


def age(folder, seconds: float) -> None:
    """As if the entry, or what else ``folder`` is, had last been used or changed that long ago."""
    then = time.time() - seconds
    record = folder / "entry.json"
    os.utime(record if record.exists() else folder, (then, then))


@pytest.fixture
def old(place, fake):
    """Kernels 0 to 4 of an earlier process, 0 used least recently; their sizes."""
    sizes = []
    for scale in range(5):
        folder = layout.folder_of(place.root, engine.build(spec(scale)).digest)
        age(folder, 1000 - scale)
        sizes.append(layout.size_of(folder))
    forget()
    return sizes


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def kept(place, *scales) -> list[int]:
    """Which of these kernels are in the user's root."""
    there = {path.name for path in place.entries()}
    return [scale for scale in scales or range(10) if key_of(spec(scale)).digest in there]


def test_v12_least_recently_used_first_and_the_sizes_add_up(place, old, quiet):
    pruned = place.store.prune(sum(old[2:]))
    assert kept(place) == [2, 3, 4]
    assert pruned == eviction.Pruned(entries=2, freed=sum(old[:2]), kept=sum(old[2:]), swept=0)
    assert sum(layout.size_of(folder) for folder in place.entries()) == pruned.kept and place.leftovers() == []
    assert place.store.prune(sum(old[2:])) == eviction.Pruned(0, 0, sum(old[2:]), 0)


def test_a_publish_above_the_limit_evicts_with_room_to_spare(place, old, quiet):
    with knobs.scope(CHORD_CACHE_MAX_BYTES=str(sum(old))):
        assert engine.build(spec(5)).origin == "compiled"
    assert kept(place) == [2, 3, 4, 5]


def test_entries_that_are_adopted_count_and_stay(place, old, quiet, tmp_path):
    digests = {}
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "elsewhere")):
        for scale in (7, 8):
            digest = engine.build(spec(scale)).digest
            digests[digest] = place.store.contents(digest)
    forget()
    with knobs.scope(CHORD_CACHE_MAX_BYTES=str(sum(old[:3]))):
        assert all(place.store.adopt(digest, contents) for digest, contents in digests.items())
    assert kept(place) == [4, 7, 8]


def test_0_is_no_limit(place, old, quiet):
    with knobs.scope(CHORD_CACHE_MAX_BYTES="0"):
        engine.build(spec(5))
    assert kept(place) == [0, 1, 2, 3, 4, 5]


def test_what_this_process_took_or_published_never_goes(place, old, quiet):
    engine.build(spec(1))
    with knobs.scope(CHORD_CACHE_MAX_BYTES="1"):
        engine.build(spec(5))
        age(layout.folder_of(place.root, key_of(spec(1)).digest), 10_000)
        engine.build(spec(6))
        place.store.prune(0)
    assert kept(place) == [1, 5, 6]


def test_a_caller_can_keep_more(place, old, quiet):
    place.store.prune(0, keep={key_of(spec(0)).digest})
    assert kept(place) == [0]


def test_a_lookup_makes_an_entry_recent_once_in_a_process(place, old, quiet):
    folder = layout.folder_of(place.root, key_of(spec(0)).digest)
    before = catalog.last_used(folder)
    engine.build(spec(0))
    assert catalog.last_used(folder) > before + 900
    age(folder, 5000)
    set_back = catalog.last_used(folder)
    for _ in range(3):
        engine.build(spec(0))
        place.store.used(key_of(spec(0)).digest)
    assert catalog.last_used(folder) == set_back
    forget()
    place.store.prune(sum(old[1:]))
    assert kept(place) == [1, 2, 3, 4]


def test_processes_that_start_together_write_one_use_down(place, old, quiet, monkeypatch):
    folder = layout.folder_of(place.root, key_of(spec(0)).digest)
    written = []
    real = os.utime
    monkeypatch.setattr(os, "utime", lambda path, *given: written.append(path) or real(path, *given))
    for _ in range(3):
        engine.build(spec(0))
        forget()
    assert written == [folder / "entry.json"]


def test_a_look_by_a_tool_is_no_use(place, old, quiet):
    times = [catalog.last_used(folder) for folder in place.entries()]
    list(place.store.items()), list(place.store.verify()), [place.store.find(folder.name) for folder in place.entries()]
    assert [catalog.last_used(folder) for folder in place.entries()] == times and eviction._taken == set()


def test_an_entry_that_another_process_just_took_stays(place, old, quiet, monkeypatch):
    real, first = layout.discard, key_of(spec(1)).digest

    def discard(root, folder):
        real(root, folder)
        os.utime(layout.folder_of(root, first) / "entry.json")

    monkeypatch.setattr(layout, "discard", discard)
    place.store.prune(sum(old[3:]))
    assert kept(place) == [1, 4]


def test_v12_an_entry_that_another_process_evicts_counts_once(place, old, quiet, monkeypatch):
    real = layout.discard

    def discard(root, folder):
        shutil.rmtree(folder)
        real(root, folder)

    monkeypatch.setattr(layout, "discard", discard)
    assert place.store.prune(sum(old[2:])) == eviction.Pruned(entries=0, freed=0, kept=sum(old[2:]), swept=0)
    assert kept(place) == [2, 3, 4]


def test_what_cannot_be_removed_is_passed_over(place, old, quiet, monkeypatch):
    real, stuck = layout.discard, key_of(spec(0)).digest

    def discard(root, folder):
        if folder.name == stuck:
            raise PermissionError(13, "no", str(folder))
        real(root, folder)

    monkeypatch.setattr(layout, "discard", discard)
    place.store.prune(sum(old[2:]))
    assert kept(place) == [0, 3, 4]


def test_files_that_the_file_system_holds_on_to_cost_no_further_entry(place, old, quiet, monkeypatch):
    """A network file system keeps a file in use under another name; its entry is gone from its place all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", busy)
        assert place.store.prune(sum(old[2:])) == eviction.Pruned(entries=2, freed=sum(old[:2]), kept=sum(old[2:]), swept=0)
        place.store.remove(layout.folder_of(place.root, key_of(spec(2)).digest))
    assert kept(place) == [3, 4] and len(place.leftovers()) == 3
    for path in place.leftovers():
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert place.store.prune(1 << 30).swept == 3 and place.leftovers() == []


def busy(path, **_):
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))


def test_an_entry_that_a_sweep_takes_while_it_is_removed_is_removed(place, old, quiet, monkeypatch):
    """Its time may be that of its publish, so a sweep can think that its writer has died."""
    real = shutil.rmtree

    def rmtree(path, *given, **named):
        os.utime(path, (LONG_AGO, LONG_AGO))
        monkeypatch.setattr(shutil, "rmtree", real)
        assert eviction.prune(place.root, None).swept == 1
        real(path, *given, **named)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    place.store.remove(layout.folder_of(place.root, key_of(spec(0)).digest))
    assert kept(place) == [1, 2, 3, 4] and place.leftovers() == []


def test_below_the_limit_the_root_is_looked_through_once(place, fake, quiet, monkeypatch):
    looks = []
    real = eviction.prune
    monkeypatch.setattr(eviction, "prune", lambda *given, **named: looks.append(given) or real(*given, **named))
    for scale in range(8):
        engine.build(spec(scale))
    assert len(looks) == 1
    clock = time.monotonic() + 601
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    engine.build(spec(8))
    assert len(looks) == 2


def test_no_look_without_a_publish(place, old, quiet, monkeypatch):
    monkeypatch.setattr(eviction, "prune", None)
    with knobs.scope(CHORD_CACHE_MAX_BYTES="1"):
        assert engine.build(spec(0)).origin == "hit"


def test_old_staging_folders_and_old_damaged_entries_are_swept(place, old, quiet):
    leftovers = {}
    for name, seconds in ((".staging/dead", 3700), (".staging/alive", 3500), (".bad/forgotten", 90_000), (".bad/fresh", 80_000)):
        leftovers[name] = place.root / name
        leftovers[name].mkdir(parents=True, mode=0o700)
        (leftovers[name] / "kernel.cubin").write_bytes(b"half")
        age(leftovers[name], seconds)
    engine.build(spec(5))
    assert [name for name, path in leftovers.items() if path.exists()] == [".staging/alive", ".bad/fresh"]
    assert kept(place) == [0, 1, 2, 3, 4, 5]


def test_a_damaged_entry_of_old_can_be_looked_at_for_a_day(place, old):
    folder = layout.folder_of(place.root, key_of(spec(0)).digest)
    (folder / "kernel.cu").write_text("changed")
    os.utime(folder, (LONG_AGO, LONG_AGO))
    with pytest.warns(CacheWarning, match="damaged"):
        engine.build(spec(0))
    place.store.prune(1 << 30)
    (aside,) = (place.root / ".bad").iterdir()
    assert (aside / "kernel.cu").read_text() == "changed"


def test_a_sweep_follows_no_link(place, old, quiet, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thing").touch()
    os.utime(tmp_path / "precious", (LONG_AGO, LONG_AGO))
    (place.root / ".bad").symlink_to(tmp_path)
    (place.root / ".staging" / "link").symlink_to(tmp_path / "precious")
    os.utime(place.root / ".staging" / "link", (LONG_AGO, LONG_AGO), follow_symlinks=False)
    place.store.prune(0)
    assert (tmp_path / "precious" / "thing").exists() and place.leftovers() == []


def test_what_others_keep_beside_the_entries_stays(place, old, quiet):
    for path in (place.cache / "chord_jit-v2" / "ab" / ("c" * 64), place.root / "notes", place.root / "ab" / "no_digest"):
        path.mkdir(parents=True)
    place.store.prune(0)
    assert kept(place) == [] and {path.name for path in place.cache.iterdir()} == {place.root.name, "chord_jit-v2"}
    assert (place.root / "notes").is_dir() and (place.root / "ab" / "no_digest").is_dir()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_reader_that_loses_the_race_sees_a_miss(place, old, fake, quiet, monkeypatch, after):
    """The entry goes away after so many of its files were read: no notice, no quarantine, one compile."""
    folder = layout.folder_of(place.root, key_of(spec(0)).digest)
    real, reads = files.read, []

    def read(path, **named):
        if len(reads) == after:
            layout.discard(place.root, folder)
        reads.append(path)
        return real(path, **named)

    monkeypatch.setattr(files, "read", read)
    assert place.store.find(folder.name) is None
    assert engine.build(spec(0)).origin == "compiled" and not (place.root / ".bad").exists()


def test_an_entry_that_was_replaced_meanwhile_is_not_called_damaged(place, old, quiet, monkeypatch):
    folder = layout.folder_of(place.root, key_of(spec(0)).digest)
    shutil.copytree(folder, place.root / "copy")
    real, reads = files.read, []

    def read(path, **named):
        if len(reads) == 1:
            (place.root / "first").mkdir()
            folder.rename(place.root / "first" / "gone")
            (place.root / "copy").rename(folder)
            path = place.root / "nowhere"
        reads.append(path)
        return real(path, **named)

    monkeypatch.setattr(files, "read", read)
    assert place.store.find(folder.name) is None
    assert place.store.find(folder.name).digest == folder.name


def test_a_root_that_goes_away_under_the_eviction(place, old, quiet):
    shutil.rmtree(place.cache)
    assert place.store.prune(0) == eviction.Pruned(0, 0, 0, 0)
    eviction.after_publish(place.root, 10)


def test_v2_readers_and_evicting_writers_at_once(place, fake, tmp_path):
    """Four processes on a root that holds hardly one entry: every build is right, nobody hears of damage."""
    body = """
import random, warnings
from chord_jit import knobs
from chord_jit.jit import eviction
warnings.simplefilter("error")
random.seed(os.getpid())
right = 0
with knobs.scope(CHORD_CACHE_MAX_BYTES="1"):
    for _ in range(60):
        scale = random.randrange(3)
        engine.forget()
        entry = engine.build(spec(scale))
        right += entry.digest == key.key_of(spec(scale)).digest and f"kScale = {scale};".encode() in entry.cubin
print(json.dumps(right))"""
    assert answers(start(tmp_path, body, count=4)) == [60] * 4
    assert not (place.root / ".bad").exists() and place.leftovers() == []
