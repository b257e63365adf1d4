"""An archive is all right or not imported at all: climbing paths, links, devices, lies about sizes, cuts, other versions."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tracemalloc
from contextlib import nullcontext

import pytest

from chord_jit import knobs
from chord_jit.errors import CacheError, InputError
from chord_jit.jit import archive, engine, record
from chord_jit.jit.store import Store
from tests.toy.family import spec
from tests.toy.fixtures import forget


@pytest.fixture
def contents(fake, place):
    """Two entries, digest to files."""
    digests = [engine.build(spec(scale)).digest for scale in (1, 2)]
    return {digest: place.store.contents(digest) for digest in digests}


@pytest.fixture
def packed(contents, tmp_path):
    archive.export(contents, tmp_path / "kernels.tar")
    return tmp_path / "kernels.tar"


@pytest.fixture
def empty(tmp_path):
    return Store(tmp_path / "other" / "root")


def members(path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def repack(path, parts) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in parts:
            if member.isreg():
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())


def change_index(path, change) -> None:
    (first, content), *rest = members(path)
    index = json.loads(content)
    change(index)
    repack(path, [(first, json.dumps(index).encode()), *rest])


def test_there_and_back(contents, packed, empty):
    done = archive.load(packed, empty)
    assert set(done.new) == set(contents) and done.present == ()
    assert {digest: empty.contents(digest) for digest in contents} == contents
    again = archive.load(packed, empty)
    assert again.new == () and set(again.present) == set(contents)
    assert {key["stem"] for key in done.keys} == {"toy_add"}


def test_equal_entries_give_equal_bytes_and_no_file_is_replaced(contents, packed, tmp_path):
    archive.export(dict(reversed(contents.items())), tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == packed.read_bytes()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CacheError, match="must not replace"):
        archive.export(contents, packed)
    with pytest.raises(CacheError, match="writable"):
        archive.export(contents, tmp_path / "nowhere" / "x.tar")
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_imported_is_served_without_a_compile(contents, packed, place, fake):
    for digest in contents:
        place.store.remove(place.root / digest[:2] / digest)
    forget()
    archive.load(packed, place.store)
    assert [engine.build(spec(scale)).origin for scale in (1, 2)] == ["hit", "hit"] and len(fake.compiles()) == 2


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


#: name, what takes the place of the second member (the first cubin)
STRANGE = (
    ("climbing", _member("../../../evil")),
    ("absolute", _member("/tmp/evil")),
    ("symbolic link", _member("", tarfile.SYMTYPE, "/etc/passwd")),
    ("hard link", _member("", tarfile.LNKTYPE, "index.json")),
    ("device", _member("", tarfile.CHRTYPE)),
    ("fifo", _member("", tarfile.FIFOTYPE)),
    ("folder", _member("", tarfile.DIRTYPE)),
    ("another name", _member("kernel.cubin")),
)


@pytest.mark.parametrize("name, member", STRANGE, ids=[name for name, _ in STRANGE])
def test_strange_members(name, member, packed, empty):
    parts = members(packed)
    member.name = member.name or parts[1][0].name
    repack(packed, [parts[0], (member, parts[1][1] if member.isreg() else b""), *parts[2:]])
    refused(packed, empty, "problem=")


def refused(path, store, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        archive.load(path, store)
    assert caught.value.remedy and caught.value.values["changed"] == "nothing"
    assert not store.root.exists()


def entries(index):
    return index["entries"]


#: name, change of the index, what the refusal names
LIES = (
    ("format version", lambda index: index.update(version=2), "format that this version reads"),
    ("format", lambda index: index.update(format="zip of cats"), "format that this version reads"),
    ("no entries", lambda index: index.pop("entries"), "names entries that cannot be"),
    ("duplicate", lambda index: entries(index).append(entries(index)[0]), "or one twice"),
    ("name", lambda index: entries(index)[0].update(digest="../../" + "0" * 58), "cannot be"),
    ("more files", lambda index: entries(index)[0]["files"].update(x={"size": 1, "sha256": ""}), "cannot be"),
    ("size", lambda index: entries(index)[0]["files"]["kernel.cu"].update(size=3), "declares"),
    ("negative", lambda index: entries(index)[0]["files"]["kernel.cu"].update(size=-3), "cannot be"),
    ("huge", lambda index: entries(index)[0]["files"]["kernel.cu"].update(size=1 << 60), "at most"),
    ("checksum", lambda index: entries(index)[0]["files"]["kernel.cubin"].update(sha256="0" * 64), "checksum"),
    ("key", lambda index: entries(index)[0]["key"].update(arch="sm_100a"), "not what the index"),
    ("digests swapped", lambda index: entries(index)[0].update(digest="0" * 64), "must lie there is"),
    ("missing entry", lambda index: entries(index).pop(), "follows the last entry"),
)


@pytest.mark.parametrize("name, change, text", LIES, ids=[name for name, *_ in LIES])
def test_an_index_that_lies(name, change, text, packed, empty):
    change_index(packed, change)
    refused(packed, empty, text)


def test_a_digest_that_is_not_that_of_its_key(contents, tmp_path, empty):
    (_, files), *_ = contents.items()
    target = tmp_path / "swapped.tar"
    with pytest.raises(record.Damaged):
        archive.export({"0" * 64: files}, target)
    assert not target.exists()


def test_an_entry_whose_record_belongs_to_another(contents, packed, empty):
    """Consistent checksums all over, but the files of the second entry lie under the digest of the first."""
    parts, two = members(packed), max(contents)
    index = json.loads(parts[0][1])
    index["entries"][0]["files"], index["entries"][0]["key"] = index["entries"][1]["files"], index["entries"][1]["key"]
    moved = [(parts[1 + at][0], contents[two][name]) for at, name in enumerate(record.NAMES)]
    repack(packed, [(parts[0][0], json.dumps(index).encode()), *moved, *parts[4:]])
    refused(packed, empty, "another key")


def test_every_cut(packed, empty):
    whole = packed.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for size in (*range(0, end, 331), 511, 512, 513, end - 1):
        packed.write_bytes(whole[:size])
        refused(packed, empty, "import ")


def test_flipped_bytes(packed, empty):
    whole = packed.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for at in range(0, end, 61):
        packed.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            done = archive.load(packed, empty)
        except InputError:
            assert not empty.root.exists()
        else:
            # A byte of padding, or of a header field that means nothing here.
            assert len(done.keys) == 2
            shutil.rmtree(empty.root)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a tar", b"\0" * 10240, b"x" * 4096], ids=["empty", "zip", "zeros", "text"])
def test_what_is_no_archive(content, tmp_path, empty):
    path = tmp_path / "what"
    path.write_bytes(content)
    refused(path, empty, "cut short, or no archive")


def test_something_behind_the_end(packed, empty):
    packed.write_bytes(packed.read_bytes() + b"more")
    refused(packed, empty, "follows the last entry")


def test_the_zeros_of_a_large_blocking_factor_may_follow(contents, packed, empty):
    packed.write_bytes(packed.read_bytes() + bytes(1 << 20))
    assert set(archive.load(packed, empty).new) == set(contents)


def test_zeros_without_end_are_refused_before_they_are_in_memory(packed, empty):
    """A sparse file of a few kilobytes can claim any size."""
    os.truncate(packed, 1 << 30)
    tracemalloc.start()
    try:
        refused(packed, empty, "follows the last entry")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_no_file_and_no_plain_file(tmp_path, empty):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="can be read"):
            archive.load(path, empty)


def test_limits_of_an_export(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MOST_ENTRIES", 1)
    with pytest.raises(InputError, match="at most 1 entries"):
        archive.export(contents, tmp_path / "many.tar")
    assert not (tmp_path / "many.tar").exists()


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_a_root_that_keeps_nothing_is_an_error(packed, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="CHORD_CACHE_DIR"):
        archive.load(packed, Store(tmp_path / "file" / "root"))


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_a_damaged_entry_is_replaced(contents, packed, place, locks):
    digest = next(iter(contents))
    (place.root / digest[:2] / digest / record.CUBIN).write_bytes(b"broken")
    with knobs.scope(CHORD_LOCK_DIR="/proc/nonexistent") if not locks else nullcontext():
        assert archive.load(packed, place.store).new == (digest,)
    assert place.store.contents(digest) == contents[digest]
