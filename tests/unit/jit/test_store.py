"""Entries on disk: what is written, what is believed, what is refused."""

from __future__ import annotations

import json
import os
import re
import stat
import warnings
from dataclasses import replace

import pytest

from chord_jit import knobs
from chord_jit.jit import engine, record, roots, schema
from chord_jit.jit.notices import CacheWarning
from chord_jit.jit.store import Store
from tests.toy.family import spec
from tests.toy.fixtures import forget


@pytest.fixture
def entry(place, fake):
    """A published entry, forgotten by the process."""
    entry = engine.build(spec())
    forget()
    return entry


def test_layout(place, entry):
    (folder,) = place.entries()
    assert folder == place.root / entry.digest[:2] / entry.digest
    assert {path.name for path in folder.iterdir()} == {"kernel.cubin", "kernel.cu", "entry.json"}
    assert (folder / "kernel.cubin").read_bytes() == entry.cubin
    assert "chord_toy_add" in (folder / "kernel.cu").read_text()
    body = json.loads((folder / "entry.json").read_text())
    assert body["key"]["stem"] == "toy_add" and body["facts"] == entry.facts and body["symbol"] == entry.symbol
    assert place.leftovers() == []


def test_only_the_owner_can_read_or_write(place, entry):
    (folder,) = place.entries()
    for path in (place.root, folder.parent, folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_found_again_with_every_field(place, entry):
    found = place.store.find(entry.digest)
    assert found == replace(entry, origin="hit")
    assert place.store.find("0" * 64) is None


def test_equal_builds_write_equal_bytes(place, fake, tmp_path):
    first = engine.build(spec())
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "second")):
        second = engine.build(spec())
        folders = [place.root / first.digest[:2] / first.digest, roots.cache_root() / second.digest[:2] / second.digest]
    assert len(fake.compiles()) == 2
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]


def test_v16_a_warm_build_reads_no_source_of_time(place, entry, fake):
    (folder,) = place.entries()
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    assert engine.build(spec()).origin == "hit" and len(fake.compiles()) == 1


#: what somebody else could have done to a path of the entry
def _open_to_the_group(path):
    path.chmod(path.stat().st_mode | stat.S_IWGRP)


def _open_to_all(path):
    path.chmod(path.stat().st_mode | stat.S_IWOTH)


def _link(path):
    target = path.with_name(path.name + ".real")
    path.rename(target)
    path.symlink_to(target)


LEVELS = {
    "root": lambda folder: folder.parent.parent, "prefix": lambda folder: folder.parent, "entry": lambda folder: folder,
    "cubin": lambda folder: folder / "kernel.cubin", "record": lambda folder: folder / "entry.json",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", [_open_to_the_group, _open_to_all, _link], ids=lambda change: change.__name__[1:])
def test_what_others_could_have_written_is_not_loaded(place, entry, fake, level, change):
    change(LEVELS[level](place.entries()[0]))
    with pytest.warns(CacheWarning) as caught:
        built = engine.build(spec())
    (message,) = {str(warning.message) for warning in caught}
    assert len(caught) == 1 and re.search(r"written by others|not a folder|Too many levels", message)
    assert built.origin == "compiled" and built.cubin == entry.cubin and len(fake.compiles()) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_what_belongs_to_another_user_is_not_loaded(place, entry, fake, level, monkeypatch):
    path = LEVELS[level](place.entries()[0])
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(CacheWarning, match="belongs to user"):
        assert engine.build(spec()).origin == "compiled"
    assert len(fake.compiles()) == 2


@pytest.mark.parametrize("level", ["entry", "cubin", "record"])
def test_an_entry_that_others_could_have_written_is_replaced(place, entry, fake, level):
    """Not compiled again by every process to come."""
    _open_to_all(LEVELS[level](place.entries()[0]))
    with pytest.warns(CacheWarning):
        assert engine.build(spec()).origin == "compiled"
    forget()
    assert engine.build(spec()).origin == "hit" and len(fake.compiles()) == 2
    assert [path.name.split(".")[0] for path in (place.root / ".bad").iterdir()] == [entry.digest]


def test_a_fifo_in_place_of_a_file_does_not_hang(place, entry, fake):
    path = place.entries()[0] / "kernel.cubin"
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.warns(CacheWarning, match="not a regular file"):
        assert engine.build(spec()).origin == "compiled"


def test_an_entry_moved_to_another_key_is_refused(place, entry):
    other = "ab" + entry.digest[2:]
    place.entries()[0].parent.rename(place.root / "ab")
    (place.root / "ab" / entry.digest).rename(place.root / "ab" / other)
    with pytest.warns(CacheWarning, match="another key"):
        assert place.store.find(other) is None


@pytest.mark.parametrize("field", ["symbol", "facts", "key", "version", "files"])
def test_a_changed_record_is_refused(place, entry, field):
    path = place.entries()[0] / "entry.json"
    body = json.loads(path.read_text())
    body[field] = "chord_other" if field == "symbol" else {}
    path.write_text(json.dumps(body))
    with pytest.warns(CacheWarning, match="checksum"):
        assert place.store.find(entry.digest) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"sha256": 1}', '"' + "x" * 100 + '"', "\0" * 64])
def test_a_record_that_is_no_record(place, entry, text):
    (place.entries()[0] / "entry.json").write_text(text)
    with pytest.warns(CacheWarning, match="entry.json"):
        assert place.store.find(entry.digest) is None


def test_a_record_of_another_layout_is_not_believed(place, fake, monkeypatch):
    monkeypatch.setattr(schema, "ENTRY_VERSION", schema.ENTRY_VERSION + 1)
    written = engine.build(spec())
    monkeypatch.undo()
    with pytest.warns(CacheWarning, match="another key or layout"):
        assert Store(place.root).find(written.digest) is None


def test_v30_an_entry_of_a_neighbouring_target_is_not_taken(place, fake):
    """Also where the target is of the same major version: an entry serves the target that it was made for."""
    made = {arch: engine.build(spec(arch=arch)).digest for arch in ("sm_90a", "sm_100a")}
    forget()
    assert engine.build(spec(arch="sm_103a")).origin == "compiled" and len(fake.compiles()) == 3
    assert {arch: engine.build(spec(arch=arch)).digest for arch in made} == made and len(fake.compiles()) == 3


def test_record_round_trip(place, entry, fake):
    key = engine.key_of(spec())
    contents = record.files_of(entry, key)
    assert record.entry_of(contents, key.digest) == replace(entry, origin="hit")
    for name in contents:
        for position in range(0, len(contents[name]), 97):
            flipped = bytearray(contents[name])
            flipped[position] ^= 1
            with pytest.raises(record.Damaged):
                record.entry_of({**contents, name: bytes(flipped)}, key.digest)


def test_a_changed_byte_anywhere_in_a_record_is_noticed(place, entry, fake):
    """Blanks too, which mean nothing to a reader of JSON."""
    contents = record.files_of(entry, engine.key_of(spec()))
    text = contents[record.RECORD]
    changed = [text + b"\n", text[:-1], b" " + text, text.replace(b"\n", b"\r\n"), json.dumps(json.loads(text)).encode()]
    changed += [text[:at] + (b"\t" if text[at : at + 1] == b" " else b" ") + text[at + 1 :] for at in range(len(text))]
    for other in changed:
        with pytest.raises(record.Damaged):
            record.entry_of({**contents, record.RECORD: other}, entry.digest)


def test_the_users_cache_folder_is_the_default(place, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with knobs.scope(CHORD_CACHE_DIR=None):
        assert roots.cache_root() == tmp_path / "xdg" / "chord_jit" / "chord_jit-v1"


def test_a_relative_or_home_folder_is_made_absolute(place, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with knobs.scope(CHORD_CACHE_DIR="~/here"):
        assert roots.cache_root() == tmp_path / "here" / "chord_jit-v1"
    with knobs.scope(CHORD_CACHE_DIR="here"):
        assert roots.cache_root().is_absolute()


def test_other_software_in_the_same_folder_is_left_alone(place, fake):
    place.cache.mkdir()
    place.cache.chmod(0o775)
    (place.cache / "theirs").write_text("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.build(spec())
    assert {path.name for path in place.cache.iterdir()} == {"theirs", schema.STORE_FOLDER}
