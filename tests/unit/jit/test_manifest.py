"""A manifest is found by all that chose its kernels, and believed only when it is whole and this user's."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from chord_jit import assets, knobs
from chord_jit.jit import manifest, schema
from chord_jit.jit.manifest import Wanted
from chord_jit.jit.store import Store
from tests.toy.family import ASSETS, spec

REQUEST = {"model": {"hidden": 1024}, "targets": ["sm_90a"]}
KERNELS = tuple(Wanted(spec(scale), f"{scale:064x}", "toy 1x256", scale) for scale in (1, 2))


@pytest.fixture(autouse=True)
def unedited(monkeypatch):
    """Somebody may edit the checkout while the tests run."""
    monkeypatch.setattr(manifest, "_imported", float("inf"))


@pytest.fixture
def written(place):
    name = manifest.name_of(REQUEST)
    manifest.write(place.store, name, KERNELS)
    return name, place.root / "manifests" / f"{name}.json"


def test_there_and_back(place, written):
    name, path = written
    assert manifest.read(place.store, name) == KERNELS
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path] and list(place.store.folders()) == []
    assert manifest.read(place.store, "0" * 64) is None


def test_the_name_holds_all_that_steers_a_choice(place, tmp_path, monkeypatch):
    names = [manifest.name_of(REQUEST), manifest.name_of({**REQUEST, "targets": ["sm_100a"]})]
    with knobs.scope(CHORD_W4A16_BM="16"):
        names.append(manifest.name_of(REQUEST))
    shutil.copytree(ASSETS / "templates", tmp_path / "toy" / "templates")
    shutil.copytree(ASSETS / "include", tmp_path / "toy" / "include")
    with assets.scope(tmp_path / "toy"):
        names.append(manifest.name_of(REQUEST))
        template = next((tmp_path / "toy" / "templates").iterdir())
        template.write_text(template.read_text() + "// changed\n")
        names.append(manifest.name_of(REQUEST))
    monkeypatch.setattr(schema, "PINNED_CUTLASS", "0.0.0")
    with knobs.scope(CHORD_CUTLASS_DIR="/no/such/folder/of/the/manifest"):
        names.append(manifest.name_of(REQUEST))
    assert len(set(names)) == len(names)


def test_the_name_does_not_hold_where_things_lie(place):
    name = manifest.name_of(REQUEST)
    with knobs.scope(CHORD_CACHE_DIR="/somewhere", CHORD_LOCK_TIMEOUT="3"):
        assert manifest.name_of(dict(reversed(REQUEST.items()))) == name


def test_code_that_was_edited_since_it_was_imported_has_no_name_and_writes_nothing(place, monkeypatch):
    """What is in memory did not choose what the files now say, and would not choose what others wrote for them."""
    monkeypatch.setattr(manifest, "_imported", 0.0)
    assert manifest.name_of(REQUEST) is None
    manifest.write(place.store, "0" * 64, KERNELS)
    assert not place.root.exists()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one table, imported now."""
    folder = tmp_path / "package"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "toy.json").write_text('{"rows": []}')
    monkeypatch.setattr(manifest, "_PACKAGE", folder)
    time.sleep(0.02)
    monkeypatch.setattr(manifest, "_imported", time.time())
    time.sleep(0.02)
    return folder


def test_a_table_that_was_edited_since_the_import_writes_nothing(place, package):
    """A table is read once in a process. An edit does not hide behind the times that it gives to the file."""
    table, manifests = package / "tables" / "toy.json", place.root / "manifests"
    before, name = table.stat(), manifest.name_of(REQUEST)
    manifest.write(place.store, name, KERNELS)
    assert [path.stem for path in manifests.iterdir()] == [name]
    table.write_text('{"rows": [1]}')
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert manifest.name_of(REQUEST) is None
    manifest.write(place.store, "0" * 64, KERNELS)
    assert [path.stem for path in manifests.iterdir()] == [name]


def test_what_goes_away_since_the_import_writes_nothing(place, package, monkeypatch):
    table = package / "tables" / "toy.json"
    real = manifest._sources
    monkeypatch.setattr(manifest, "_sources", lambda: (real(), table.unlink())[0])
    manifest.write(place.store, "0" * 64, KERNELS)
    assert not place.root.exists()


def test_the_files_that_python_and_editors_put_there_are_no_sources(package, monkeypatch):
    monkeypatch.setattr(manifest, "_imported", float("inf"))
    name = manifest.name_of(REQUEST)
    for path in ("tables/__pycache__/toy.cpython-311.pyc.140023", "__pycache__/toy.cpython-311.pyc", "tables/.toy.json.swp"):
        (package / path).parent.mkdir(exist_ok=True)
        (package / path).write_text("half")
    assert manifest.name_of(REQUEST) == name
    (package / "more.json").write_text("{}")
    assert manifest.name_of(REQUEST) != name


def test_a_source_that_goes_away_meanwhile_leaves_no_name(package, monkeypatch):
    real = manifest._sources
    monkeypatch.setattr(manifest, "_sources", lambda: [*real(), ("gone", package / "gone")])
    assert manifest.name_of(REQUEST) is None


def damages(path):
    body = json.loads(path.read_text())
    yield path.read_text()[:-20]
    yield "[]"
    yield "[" * 100000
    yield json.dumps({**body, "version": 2})
    yield json.dumps({**body, "kernels": body["kernels"][:1]})
    yield json.dumps({**body, "sha256": "0" * 64})
    yield path.read_text().replace('"toy_add"', '"toy_sub"')


def test_what_is_not_whole_is_not_there(place, written):
    name, path = written
    for text in list(damages(path)):
        path.write_text(text)
        assert manifest.read(place.store, name) is None
    path.rename(path.with_name("1" * 64 + ".json"))
    assert manifest.read(place.store, "1" * 64) is None


def test_what_others_can_write_is_not_believed(place, written):
    name, path = written
    for changed in (path, path.parent, place.root):
        mode = changed.stat().st_mode & 0o777
        changed.chmod(mode | 0o022)
        assert manifest.read(place.store, name) is None
        changed.chmod(mode)
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    assert manifest.read(place.store, name) is None


def test_a_disk_that_refuses_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    manifest.write(Store(tmp_path / "file" / "root"), "0" * 64, KERNELS)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_oldest_go(place, written, monkeypatch):
    monkeypatch.setattr(manifest, "_MOST", 3)
    os.utime(written[1], (1, 1))
    for index in range(3):
        manifest.write(place.store, f"{index:064x}", KERNELS)
    assert sorted(path.stem for path in written[1].parent.iterdir()) == [f"{index:064x}" for index in range(3)]
