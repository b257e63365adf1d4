"""The store as tools see it: what is there, whether it is whole, moving entries from one root to another."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import replace

import pytest

from chord_jit.errors import CacheError
from chord_jit.jit import engine, files, layout, record, schema
from chord_jit.jit.key import digest_of, key_of
from chord_jit.jit.store import Store
from tests.toy.fake import cubin
from tests.toy.family import spec
from tests.toy.fixtures import forget


@pytest.fixture
def three(place, fake):
    """Kernels 1, 2 and 3, forgotten by the process."""
    for scale in (1, 2, 3):
        engine.build(spec(scale))
    forget()
    return [layout.folder_of(place.root, key_of(spec(scale)).digest) for scale in (1, 2, 3)]


@pytest.fixture
def second(tmp_path):
    return Store(tmp_path / "second" / schema.STORE_FOLDER)


@pytest.fixture(autouse=True)
def quiet(place):
    """A tool reports; it does not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_items_say_what_is_there(place, three):
    items = list(place.store.items())
    assert [item.folder for item in items] == sorted(three)
    for item in items:
        scale = three.index(item.folder) + 1
        assert item.fields == key_of(spec(scale)).fields and digest_of(item.fields) == item.digest
        assert item.facts["registers"] == 40 and item.symbol == "chord_toy_add" and item.problem == ""
        assert item.size == sum(path.stat().st_size for path in item.folder.iterdir())
        assert abs(item.last_used - time.time()) < 60
        assert place.store.item(item.digest) == item
    assert place.store.item("0" * 64) is None


def test_an_empty_or_absent_root_has_no_items(place, second):
    assert list(place.store.items()) == list(second.items()) == list(second.verify()) == []


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _remove(path):
    path.unlink()


def _open(path):
    path.chmod(0o666)


@pytest.mark.parametrize("fault, complaint", [(_cut, "checksum|cannot be read"), (_remove, "is missing"), (_open, "written by others")])
@pytest.mark.parametrize("name", record.NAMES)
def test_verify_names_what_is_wrong_and_goes_on(place, three, fault, complaint, name):
    fault(three[1] / name)
    bad = {item.folder: item for item in place.store.verify() if item.problem}
    assert list(bad) == [three[1]]
    item = bad[three[1]]
    assert any(part in item.problem for part in complaint.split("|"))
    # A record that is whole is shown, whatever became of the cubin.
    assert bool(item.fields) == (name != record.RECORD) and item.size > 0
    assert len(list(place.store.items())) == 3 and bool(place.store.item(item.digest).problem) == (name == record.RECORD)


def test_an_item_that_goes_away_meanwhile_is_left_out(place, three, monkeypatch):
    real = files.read

    def read(path, **named):
        if path.parent == three[0] and three[0].exists():
            layout.discard(place.root, three[0])
        return real(path, **named)

    monkeypatch.setattr(files, "read", read)
    assert sorted(item.folder for item in place.store.items()) == sorted(three[1:])


def test_entries_move_from_root_to_root(place, three, second):
    for folder in three:
        contents = place.store.contents(folder.name)
        assert set(contents) == set(record.NAMES)
        assert second.adopt(folder.name, contents) is True
        assert second.adopt(folder.name, contents) is False
        assert second.find(folder.name) == place.store.find(folder.name)
    assert [item.fields for item in second.verify()] == [item.fields for item in place.store.items()]
    assert list((second.root / ".staging").iterdir()) == []
    assert oct(second.root.stat().st_mode)[-3:] == "700"


def test_contents_of_a_damaged_or_absent_entry(place, three):
    _cut(three[0] / "kernel.cubin")
    for digest, complaint in ((three[0].name, "checksum"), ("0" * 64, "no such entry")):
        with pytest.raises(CacheError, match=complaint):
            place.store.contents(digest)


def test_adopt_checks_every_byte_and_the_key(place, three, second):
    digest, contents = three[0].name, place.store.contents(three[0].name)
    wrong = [(three[1].name, contents), (digest, {}), ("../" + digest[3:], contents)]
    wrong += [(digest, {**contents, name: contents[name][:-1] + b"?"}) for name in record.NAMES]
    for named, files_given in wrong:
        with pytest.raises(CacheError, match="must be whole"):
            second.adopt(named, files_given)
    assert not second.root.exists()


@pytest.mark.parametrize("image, complaint", [(b"no cubin", "must be whole"), (cubin("other"), "exactly once")])
def test_adopt_wants_a_real_kernel_whatever_the_checksums_say(place, three, second, image, complaint):
    key = key_of(spec(1))
    forged = record.files_of(replace(place.store.find(key.digest), cubin=image), key)
    with pytest.raises(CacheError, match=complaint):
        second.adopt(key.digest, forged)
    assert not second.root.exists()


def test_adopt_writes_nothing_but_the_three_files(place, three, second):
    digest, contents = three[0].name, place.store.contents(three[0].name)
    second.adopt(digest, {**contents, "../../evil": b"x", "more": b"y"})
    assert {path.name for path in layout.folder_of(second.root, digest).iterdir()} == set(record.NAMES)
    assert not list(second.root.parent.rglob("evil"))


def test_adopt_into_a_root_that_takes_nothing(place, three):
    digest, contents = three[0].name, place.store.contents(three[0].name)
    (place.cache.parent / "file").touch()
    with pytest.raises(CacheError, match="must take new entries") as caught:
        Store(place.cache.parent / "file" / "x").adopt(digest, contents)
    assert "CHORD_CACHE_DIR" in caught.value.remedy


def test_remove(place, three):
    place.store.remove(three[0])
    assert not three[0].exists() and three[1].exists() and place.leftovers() == []
    with pytest.raises(CacheError, match="removable"):
        place.store.remove(three[0])
    for other in (place.cache, place.root, place.root / ".staging", place.cache / three[1].name):
        with pytest.raises(CacheError, match="an entry of this root"):
            place.store.remove(other)


def test_prune_keeps_what_was_used_last(place, three):
    os.utime(three[1] / "entry.json", (1, 1))
    pruned = place.store.prune(2 * layout.size_of(three[0]) + 10)
    assert pruned.entries == 1 and sorted(place.entries()) == sorted([three[0], three[2]])
