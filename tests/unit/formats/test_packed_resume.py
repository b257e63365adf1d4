"""What ``pack_checkpoint`` does to a folder that is not empty: whose files it touches, and which source it goes on with."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from chord_jit.errors import InputError
from chord_jit.formats import packed_write
from chord_jit.formats.packed_check import verify_packed
from chord_jit.formats.packed_index import INDEX
from chord_jit.formats.packed_write import pack_checkpoint
from tests.unit.formats import tiny_layers as tiny
from tests.unit.formats.live_bytes import LiveBytes

EXPERTS = 4
FIRST = "layer-00001.safetensors"
LEFT = f".{FIRST}.{'0123456789abcdef' * 2}.partial"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny.write(folder, 5, [1, 2, 3], tiny.config(3, EXPERTS, 96, 64))
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_a_refused_folder_keeps_every_file(model, tmp_path):
    (tmp_path / LEFT).write_text("looks like a writer's leftover")
    for name in (".download.partial", f".{FIRST}.partial", "film.mkv"):
        (tmp_path / name).write_text("mine")
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"new or hold this packing(?s:.)*holds=\.download\.partial"):
        pack_checkpoint(model, tmp_path)
    assert content(tmp_path) == before


def test_a_folder_of_another_packing_keeps_its_leftovers(model, tmp_path):
    pack_checkpoint(model, tmp_path, layers=[1])
    (tmp_path / LEFT).write_text("of a writer that was killed")
    before = content(tmp_path)
    with pytest.raises(InputError, match="hold this packing"):
        pack_checkpoint(model, tmp_path, ep=2)
    assert content(tmp_path) == before


@pytest.mark.parametrize("started", [False, True], ids=["before the index", "after the first layer"])
def test_what_a_killed_writer_left_is_removed_and_nothing_else(model, tmp_path, started):
    if started:
        pack_checkpoint(model, tmp_path, layers=[1])
        (tmp_path / ".notes.partial").write_text("mine")
    (tmp_path / LEFT).write_text("of a writer that was killed")
    pack_checkpoint(model, tmp_path, layers=[1, 2])
    assert not (tmp_path / LEFT).exists() and (tmp_path / ".notes.partial").exists() == started


def folder_of_that_name(path: Path) -> None:
    path.mkdir()


def link_of_that_name(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("make", [folder_of_that_name, link_of_that_name])
def test_only_a_regular_file_can_be_a_leftover(model, tmp_path, make):
    target = tmp_path / "packed"
    target.mkdir()
    make(target / LEFT)
    with pytest.raises(InputError, match=rf"new or hold this packing(?s:.)*holds={LEFT}"):
        pack_checkpoint(model, target)
    (target / LEFT).rename(tmp_path / "aside")
    pack_checkpoint(model, target, layers=[1])
    (tmp_path / "aside").rename(target / LEFT)
    assert pack_checkpoint(model, target, layers=[2]).written == (2,) and os.path.lexists(target / LEFT)


def listed(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def fine_tune(model: Path, folder: Path, layers: list[int]) -> Path:
    """Other weights under the same config.json, in ``layers`` alone."""
    config = json.loads((model / "config.json").read_text())
    tiny.write(folder, 77, layers, config)
    tuned = {name: f"tuned-{file}" for name, file in listed(folder).items()}
    for file in folder.glob("*.safetensors"):
        file.rename(folder / f"tuned-{file.name}")
    shutil.copytree(model, folder, dirs_exist_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed(model) | tuned}))
    assert (folder / "config.json").read_bytes() == (model / "config.json").read_bytes()
    return folder


def one_shard_a_layer(model: Path, folder: Path) -> Path:
    """The same checkpoint in other files."""
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    held, files = {}, {}
    for shard in model.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            layer = re.search(r"layers\.(\d+)\.", name)[1]
            held.setdefault(layer, {})[name] = tensor
            files[name] = f"{layer}.safetensors"
    for layer, tensors in held.items():
        save_file(tensors, folder / f"{layer}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


@pytest.mark.parametrize("tuned", [[1, 2, 3], [2]], ids=str)
@pytest.mark.parametrize("asked", [None, [3], [1, 2]], ids=str)
def test_layers_of_two_models_never_meet_in_a_folder(model, tmp_path, tuned, asked):
    """The same config.json, other weights, in all layers or in one of those that are there; asked for it or not."""
    other = fine_tune(model, tmp_path / "other", tuned)
    target = tmp_path / "packed"
    pack_checkpoint(model, target, layers=[1, 2], ep=2, rank=1)
    before = content(target)
    with pytest.raises(InputError, match=rf"holds layers of other weights(?s:.)*layer={tuned[0]}, expert=[23].*differs from the source"):
        pack_checkpoint(other, target, layers=asked, ep=2, rank=1)
    assert content(target) == before
    pack_checkpoint(model, target, ep=2, rank=1)
    assert verify_packed(target, source=model, sample=None).problems == ()


def test_going_on_compares_one_expert_a_layer_and_no_layer_that_has_gone(model, tmp_path, monkeypatch):
    seen, compare = [], packed_write.differences
    monkeypatch.setattr(packed_write, "differences", lambda *given: seen.append(given[-1]) or compare(*given))
    pack_checkpoint(model, tmp_path / "packed", layers=[1, 2])
    assert seen == []
    (tmp_path / "packed" / FIRST).unlink()
    pack_checkpoint(model, tmp_path / "packed")
    assert [len(chosen) for chosen in seen] == [1]


def test_a_checkpoint_may_be_packed_shard_by_shard_and_go_meanwhile(model, tmp_path):
    """As on a disk that does not hold all of it: layers whose shards are gone are left as they are."""
    source, target = one_shard_a_layer(model, tmp_path / "source"), tmp_path / "packed"
    pack_checkpoint(source, target, layers=[1])
    (source / "1.safetensors").unlink()
    assert pack_checkpoint(source, target, layers=[1]).present == (1,)
    assert pack_checkpoint(source, target, layers=[2, 3]).written == (2, 3)
    assert verify_packed(target, source=model, sample=None).problems == ()


def test_going_on_takes_the_memory_of_one_expert_unpacked(tmp_path, seed):
    """Two thirds of an expert at a byte a code, and the scratch of unpacking them."""
    inner, hidden = 128, 512
    tiny.write(tmp_path / "model", seed, [1, 2], tiny.config(2, 2, hidden, inner))
    pack_checkpoint(tmp_path / "model", tmp_path / "packed", layers=[1])
    with LiveBytes() as live:
        pack_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert 2 * inner * hidden < live.peak < 2.25 * 3 * inner * hidden * 9 / 16


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002], ids=oct)
def test_files_have_the_mode_that_the_umask_leaves(model, tmp_path, mask):
    before = os.umask(mask)
    try:
        pack_checkpoint(model, tmp_path / "packed", layers=[1])
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / "packed" / name).stat().st_mode) for name in (INDEX, FIRST)} == {0o666 & ~mask}


@pytest.mark.parametrize("below", ["file", "file/packed"])
def test_a_file_in_the_place_of_the_folder_is_told_as_such(model, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="must be a folder") as caught:
        pack_checkpoint(model, tmp_path / below)
    assert "room" not in str(caught.value) and (tmp_path / "file").read_text() == "mine"


#: Errors of the file system, and what is to be done about each.
FAULTS = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EACCES: "that can be written", errno.EROFS: "that can be written"}


@pytest.mark.parametrize("number", FAULTS, ids=lambda number: errno.errorcode[number])
def test_only_a_full_disk_asks_for_room(model, tmp_path, monkeypatch, number):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packed_write.os, "posix_fallocate", fails)
    with pytest.raises(InputError, match=os.strerror(number)) as caught:
        pack_checkpoint(model, tmp_path / "packed")
    assert FAULTS[number] in caught.value.remedy and ("room" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert not (tmp_path / "packed").exists()
