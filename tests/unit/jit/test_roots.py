"""Several roots: which one answers, what is refused there, what a miss says. Only the user's is ever written."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from chord_jit import assets, knobs
from chord_jit.errors import CacheError, OverrideError, ToolchainError
from chord_jit.jit import engine, locks, roots, schema, toolchain
from chord_jit.jit.key import key_of
from chord_jit.jit.notices import CacheWarning
from chord_jit.jit.store import Store, stores
from tests.toy.family import ASSETS, spec
from tests.toy.fixtures import forget

VARIABLES = {"shared": "CHORD_CACHE_SHARED", "prebuilt": "CHORD_PREBUILT"}


def snapshot(folder: Path) -> dict[str, object]:
    """Everything below ``folder`` that a write would change."""
    seen = {}
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        seen[str(path)] = (found.st_mode, found.st_mtime_ns, found.st_ctime_ns, path.read_bytes() if path.is_file() else None)
    return seen


def fill(folder: Path, *scales: int) -> Path:
    """A cache folder that holds these kernels."""
    with knobs.scope(CHORD_CACHE_DIR=str(folder)):
        for scale in scales:
            engine.build(spec(scale))
    forget()
    return folder


def entry_in(folder: Path, scale: int = 2) -> Path:
    digest = key_of(spec(scale)).digest
    return folder / schema.STORE_FOLDER / digest[:2] / digest


@pytest.fixture(params=["shared", "prebuilt", "wheel"])
def other(request, place, fake, tmp_path, monkeypatch):
    """A root beside the user's that holds kernel 2: its kind and its cache folder."""
    if request.param == "wheel":
        folder = fill(tmp_path / "site" / roots.WHEELS / "kimi_k2_ep8", 2)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        yield "wheel", folder
        return
    folder = fill(tmp_path / "other", 2)
    with knobs.scope(**{VARIABLES[request.param]: str(folder)}):
        yield request.param, folder


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_v13_a_hit_needs_no_lock_no_compiler_and_no_writable_root(other, fake, monkeypatch, quiet):
    monkeypatch.setattr(locks, "held", None)
    before = snapshot(other[1])
    with knobs.scope(CHORD_CACHE_DIR="/proc/nonexistent"):
        assert engine.build(spec(2), compiler=object()).origin == "hit"
    assert len(fake.compiles()) == 1 and snapshot(other[1]) == before


def test_a_miss_is_built_in_the_users_root_and_the_other_stays_as_it_is(place, other, quiet):
    before = snapshot(other[1])
    assert engine.build(spec(3)).origin == "compiled"
    assert [path.name for path in place.entries()] == [key_of(spec(3)).digest] and snapshot(other[1]) == before


def test_a_damaged_entry_there_is_skipped_with_one_notice(place, other, fake):
    fill(other[1], 4)
    for scale in (2, 4):
        (entry_in(other[1], scale) / "kernel.cubin").write_bytes(b"short")
    before = snapshot(other[1])
    with pytest.warns(CacheWarning) as caught:
        assert engine.build(spec(2)).origin == engine.build(spec(4)).origin == "compiled"
    assert len(caught) == 1 and "damaged" in str(caught[0].message) and "skipped" in str(caught[0].message)
    assert snapshot(other[1]) == before and len(place.entries()) == 2


def test_a_damaged_entry_of_the_user_gives_way_to_a_good_one_elsewhere(place, other, fake):
    shutil.copytree(other[1], place.cache)
    (entry_in(place.cache) / "kernel.cu").unlink()
    with pytest.warns(CacheWarning, match="kernel.cu is missing"):
        assert engine.build(spec(2)).origin == "hit"
    assert len(fake.compiles()) == 1


def _group(path):
    path.chmod(path.stat().st_mode | 0o020)


def _everybody(path):
    path.chmod(path.stat().st_mode | 0o002)


def _stranger(path):
    os.chown(path, 12345, -1)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.mark.parametrize("change", [_group, _everybody, pytest.param(_stranger, marks=needs_root)])
@pytest.mark.parametrize("level", ["root", "entry", "file"])
def test_what_others_could_have_written_needs_the_knob(place, other, fake, change, level):
    kind, folder = other
    path = entry_in(folder)
    change({"root": path.parent.parent, "entry": path, "file": path / "kernel.cubin"}[level])
    if kind == "wheel":
        assert engine.build(spec(2)).origin == "hit", "who can write to sys.path runs code here anyway"
        return
    with knobs.scope(CHORD_CACHE_TRUST_SHARED="1"):
        assert engine.build(spec(2)).origin == "hit"
    forget()
    with pytest.warns(CacheWarning, match="CHORD_CACHE_TRUST_SHARED=1") as caught:
        assert engine.build(spec(2)).origin == "compiled"
    assert len(caught) == 1 and VARIABLES[kind] in str(caught[0].message)


def test_trust_is_not_for_links(other, fake):
    path = entry_in(other[1]) / "kernel.cubin"
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with knobs.scope(CHORD_CACHE_TRUST_SHARED="1"), pytest.warns(CacheWarning):
        assert engine.build(spec(2)).origin == "compiled"


def test_trust_never_covers_the_users_own_root(place, fake):
    engine.build(spec(2))
    forget()
    place.root.chmod(0o777)
    with knobs.scope(CHORD_CACHE_TRUST_SHARED="1"), pytest.warns(CacheWarning, match="CHORD_CACHE_DIR"):
        assert engine.build(spec(2)).origin == "compiled"


def test_the_order_of_the_search(place, tmp_path, monkeypatch):
    for name in ("b_wheel", "a_wheel", "_private"):
        (tmp_path / "site" / roots.WHEELS / name).mkdir(parents=True)
    (tmp_path / "more" / roots.WHEELS / "c_wheel").mkdir(parents=True)
    (tmp_path / "site" / roots.WHEELS / "README").touch()
    for site in ("more", "site"):
        monkeypatch.syspath_prepend(str(tmp_path / site))
    with knobs.scope(CHORD_CACHE_SHARED=f"{tmp_path}/one:: {tmp_path}/two ", CHORD_PREBUILT=f"{tmp_path}/three"):
        found = stores()
    assert [(store.kind, store.root.parent.name, store.trusted) for store in found] == [
        ("user", "cache", False), ("shared", "one", False), ("shared", "two", False), ("prebuilt", "three", False),
        ("wheel", "a_wheel", True), ("wheel", "b_wheel", True), ("wheel", "c_wheel", True),
    ]  # fmt: skip
    assert [store.writable for store in found] == [True] + [False] * 6
    assert roots.WHEELS not in sys.modules


def test_the_first_root_that_has_the_entry_is_the_last_one_read(other, monkeypatch):
    asked = []
    real = Store.find
    monkeypatch.setattr(Store, "find", lambda self, digest, **named: asked.append(self.kind) or real(self, digest, **named))
    with knobs.scope(CHORD_CACHE_DIR=str(other[1])):
        engine.build(spec(2))
    assert asked == ["user"]


def test_a_read_only_root_is_never_changed_by_a_tool(other):
    store = next(store for store in stores() if store.kind == other[0])
    digest = key_of(spec(2)).digest
    contents = store.contents(digest)
    for change in (lambda: store.remove(entry_in(other[1])), lambda: store.prune(0), lambda: store.adopt(digest, contents)):
        with pytest.raises(CacheError, match="only the user's own root"):
            change()


ABSENT = {"CHORD_CACHE_SHARED": "shared folder is not there", "CHORD_PREBUILT": "prebuilt folder is not there"}


@pytest.mark.parametrize("variable", ABSENT)
def test_a_folder_that_is_not_there_costs_one_notice(fake, variable):
    with knobs.scope(**{variable: "/proc/nonexistent"}), pytest.warns(CacheWarning) as caught:
        assert [engine.build(spec(scale)).origin for scale in (1, 2)] == ["compiled"] * 2
    assert len(caught) == 1 and ABSENT[variable] in str(caught[0].message)


def test_v19_prebuilt_kernels_of_another_layout_are_a_notice_and_a_miss(other, fake):
    root = other[1] / schema.STORE_FOLDER
    root.rename(root.with_name("chord_jit-v0"))
    with pytest.warns(CacheWarning) as caught:
        assert [engine.build(spec(scale)).origin for scale in (2, 3)] == ["compiled"] * 2
    assert len(caught) == 1 and "the folder has chord_jit-v0" in str(caught[0].message)


def test_v30_prebuilt_kernels_for_another_target_are_a_notice_and_a_miss(other, fake):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [engine.build(spec(scale, arch="sm_100a")).origin for scale in (2, 3)] == ["compiled"] * 2
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (other[0] != "shared") and all("for sm_90a, none for sm_100a" in message for message in messages)


def test_v19_prebuilt_kernels_of_another_toolchain_are_a_notice_and_a_miss(other, fake, monkeypatch):
    real = toolchain.discover()
    newer = replace(real, compiler=replace(real.compiler, version="13.9.1"))
    monkeypatch.setattr(toolchain, "discover", lambda: newer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [engine.build(spec(scale)).origin for scale in (2, 3)] == ["compiled"] * 2
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (other[0] != "shared")
    assert all(f"compiler version ({real.compiler.version} there, 13.9.1 here)" in message for message in messages)


def test_a_miss_without_a_compiler_names_the_kernel_and_every_root(place, other):
    class Absent:
        def compile(self, request):
            raise ToolchainError("compile a kernel", "missing NVRTC", {"NVRTC": "searched /nowhere"}, "pip install it")

    with pytest.raises(ToolchainError, match="missing NVRTC") as caught:
        engine.build(spec(3), Absent())
    error = caught.value
    assert str(spec(3)) in error.asked and error.values["key"] == key_of(spec(3)).digest[:16]
    assert str(place.root) in error.values["not found in"] and str(other[1]) in error.values["not found in"]
    assert error.values["NVRTC"] == "searched /nowhere" and "pip install it" in error.remedy and "CHORD_PREBUILT" in error.remedy


def test_a_hit_without_any_toolchain(other, monkeypatch, quiet):
    """The key comes from the pins, as it did where the toolchain has these versions."""
    found = toolchain.discover()
    absent = replace(found, **{
        name: replace(part, path=None) for name, part in vars(found).items() if isinstance(part, toolchain.Part)
    })  # fmt: skip
    monkeypatch.setattr(toolchain, "discover", lambda: absent)
    assert engine.build(spec(2)).origin == "hit"


REFUSED = (("CHORD_CACHE_TRUST_SHARED", "yes"), *(("CHORD_CACHE_MAX_BYTES", text) for text in ("1 GB", "-1", "G", "1.5G")))


@pytest.mark.parametrize("name, text", REFUSED)
def test_values_that_do_not_parse(name, text):
    with pytest.raises(OverrideError, match=name):
        with knobs.scope(**{name: text}):
            pass


@pytest.mark.parametrize("text, value", [("0", 0), ("5", 5), ("3K", 3 << 10), ("20M", 20 << 20), ("2G", 2 << 30), (None, 1 << 30)])
def test_sizes(text, value):
    with knobs.scope(CHORD_CACHE_MAX_BYTES=text):
        assert knobs.read("CHORD_CACHE_MAX_BYTES") == value


def test_v19_two_versions_with_one_layout_share_a_root_in_peace(place, fake, tmp_path, quiet):
    shutil.copytree(ASSETS / "templates", tmp_path / "next/templates")
    shutil.copytree(ASSETS / "include", tmp_path / "next/include")
    header = tmp_path / "next/include/chord/toy_params.cuh"
    header.write_text(header.read_text() + "// the next version\n")
    for turn in (1, 2):
        engine.build(spec(2))
        with assets.scope(tmp_path / "next"):
            engine.build(spec(2))
        forget()
        assert len(place.entries()) == len(fake.compiles()) == 2, turn


def test_v19_two_versions_with_two_layouts_share_a_root_in_peace(place, fake, monkeypatch):
    """Each has a folder of its own, and neither is touched by the other's limit."""
    engine.build(spec(2))
    monkeypatch.setattr(schema, "STORE_FOLDER", "chord_jit-v2")
    monkeypatch.setattr(schema, "ENTRY_VERSION", 2)
    forget()
    with knobs.scope(CHORD_CACHE_MAX_BYTES="1"):
        assert engine.build(spec(2)).origin == "compiled"
        Store(place.root.parent / "chord_jit-v2").prune(0)
    monkeypatch.undo()
    forget()
    assert engine.build(spec(2)).origin == "hit"
