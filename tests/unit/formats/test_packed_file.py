"""The packed form on disk: the bytes of ``load_moe_layers``, mapped; written whole or not at all, and gone on with."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from chord_jit.errors import InputError
from chord_jit.formats import packed_write
from chord_jit.formats.checkpoint import load_moe_layers
from chord_jit.formats.packed_index import ALIGNMENT, INDEX, PackedIndex, read_index
from chord_jit.formats.packed_load import load_packed
from chord_jit.formats.packed_write import pack_checkpoint
from tests.unit.formats import tiny_layers as tiny
from tests.unit.formats.live_bytes import LiveBytes, mapped

ROOT = Path(__file__).resolve().parents[3]
EXPERTS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny.write(folder, 5, [1, 2, 3], tiny.config(3, EXPERTS, 96, 64))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


FILES = [INDEX, *(f"layer-{layer:05d}.safetensors" for layer in (1, 2, 3))]
SHARES = [{}, {"interleave": False}, {"ep": 2, "rank": 1}, {"tp": 2, "rank": 1}, {"ep": 2, "tp": 2, "rank": 1}]


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_what_is_packed_is_what_is_loaded(model, tmp_path, share):
    calls = []
    done = pack_checkpoint(model, tmp_path / "packed", **share, progress=lambda *call: calls.append(call))
    wanted, found = load_moe_layers(model, **share), load_packed(tmp_path / "packed")
    assert list(found) == [1, 2, 3] and all(tiny.same(found[layer], wanted[layer]) for layer in wanted)
    assert names(tmp_path / "packed") == FILES and done.written == (1, 2, 3) and done.present == ()
    assert done.bytes == sum((tmp_path / "packed" / name).stat().st_size for name in FILES[1:])
    local = EXPERTS // share.get("ep", 1)
    assert [call[:2] for call in calls] == [(number + 1, 3 * local) for number in range(3 * local)]
    index = json.loads((tmp_path / "packed" / INDEX).read_text())
    assert (index["format"], index["layout_version"], index["interleave"]) == ("chord-w4a16", 1, share.get("interleave", True))
    assert index["share"] == {"ep": 1, "tp": 1, "rank": 0} | {name: share[name] for name in share if name != "interleave"}


def test_others_read_the_files_as_safetensors(model, tmp_path):
    pack_checkpoint(model, tmp_path / "packed")
    for layer, weights in load_moe_layers(model).items():
        path = tmp_path / "packed" / f"layer-{layer:05d}.safetensors"
        tensors = load_file(path)
        assert sorted(tensors) == [f"layers.{layer}.down", f"layers.{layer}.gate_up"]
        assert torch.equal(tensors[f"layers.{layer}.down"], weights.down.data)
        assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % ALIGNMENT == 0


def test_tensors_are_private_views_of_the_mapped_files(model, tmp_path):
    pack_checkpoint(model, tmp_path / "packed")
    with LiveBytes() as live:
        loaded = load_packed(tmp_path / "packed")
    parts = [part for weights in loaded.values() for part in (weights.gate_up, weights.down)]
    assert live.peak == 0 and all(mapped(part.data.data_ptr()) and part.data.data_ptr() % 16 == 0 for part in parts)
    before = (tmp_path / "packed" / FILES[1]).read_bytes()
    loaded[1].down.data.zero_()
    assert (tmp_path / "packed" / FILES[1]).read_bytes() == before


class Copies(TorchDispatchMode):
    """Counts operations that copy to another device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


def test_to_a_device_each_tensor_goes_in_one_copy(model, tmp_path):
    pack_checkpoint(model, tmp_path / "packed")
    with Copies() as copies:
        loaded = load_packed(tmp_path / "packed", [3, 1], "meta")
    assert copies.count == 4 and list(loaded) == [3, 1] and loaded[3].gate_up.device.type == "meta"


@pytest.mark.parametrize("layers, says", [([4], r"not there=\[4\]"), ([1, 1], "named once"), ([], "named once"), ([0], r"not there=\[0\]")])
def test_layers_that_are_not_there(model, tmp_path, layers, says):
    pack_checkpoint(model, tmp_path / "packed")
    with pytest.raises(InputError, match=says):
        load_packed(tmp_path / "packed", layers)


def test_layers_can_be_added_and_none_is_written_twice(model, tmp_path):
    target = tmp_path / "a" / "packed"
    pack_checkpoint(model, target, layers=[2])
    first = (target / FILES[2]).stat()
    calls = []
    done = pack_checkpoint(model, target, layers=[2, 1], progress=lambda *call: calls.append(call))
    again = (target / FILES[2]).stat()
    assert (done.written, done.present) == ((1,), (2,)) and (again.st_ino, again.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert {item[0] for *_, item in calls} == {1} and calls[-1][:2] == (EXPERTS, EXPERTS)
    assert list(load_packed(target)) == [1, 2]
    assert pack_checkpoint(model, target, layers=[3]).written == (3,) and list(load_packed(target)) == [1, 2, 3]
    (target / FILES[1]).unlink()
    assert pack_checkpoint(model, target, layers=[1, 2]).written == (1,), "a file that has gone is written again"
    assert all(tiny.same(weights, load_moe_layers(model)[layer]) for layer, weights in load_packed(target).items())


#: What the process is doing when it is killed, and the layers that are on the disk then.
KILLED = {
    "first layer": ("if done == 2: die()", "", []),
    "second layer": ("if done == 6: die()", "", [1]),
    "between file and index": ("pass", "from chord_jit.jit import files; old = files.sync_folder\n"
                               "files.sync_folder = lambda path: die() if (path / 'layer-00002.safetensors').exists() else old(path)", [1]),
}  # fmt: skip


@pytest.mark.parametrize("when", KILLED)
def test_killed_in_the_middle_and_gone_on_with(model, tmp_path, when):
    at, before, whole = KILLED[when]
    target = tmp_path / "packed"
    script = f"""
import os, signal
from chord_jit.formats import packed_write
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
{before}
def progress(done, total, item):
    {at}
packed_write.pack_checkpoint({str(model)!r}, {str(target)!r}, progress=progress)
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -9
    assert list(read_index(target).layers) == whole and read_index(target).missing == [layer for layer in (1, 2, 3) if layer not in whole]
    with pytest.raises(InputError, match="run chord pack again"):
        load_packed(target)
    assert list(load_packed(target, whole)) == whole if whole else True
    assert pack_checkpoint(model, target).present == tuple(whole)
    assert names(target) == FILES and all(tiny.same(found, load_moe_layers(model)[layer]) for layer, found in load_packed(target).items())


@pytest.mark.parametrize("fails_at", [1, 2], ids=["first layer", "second layer"])
def test_a_full_disk_leaves_nothing_half_written(model, tmp_path, monkeypatch, fails_at):
    calls = []

    def full(handle, start, size):
        calls.append(size)
        if len(calls) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed_write.os, "posix_fallocate", full)
    with pytest.raises(InputError, match="(?s)have room.*No space left.*make room"):
        pack_checkpoint(model, tmp_path / "new" / "packed")
    if fails_at == 1:
        assert names(tmp_path) == [], "folders made for nothing are gone"
        return
    assert names(tmp_path / "new" / "packed") == FILES[:2] and read_index(tmp_path / "new" / "packed").missing == [2, 3]


def poison(folder: Path) -> None:
    name = "model.layers.2.mlp.experts.1.down_proj.weight_scale"
    file = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    data = bytearray(file.read_bytes())
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    start = 8 + int.from_bytes(data[:8], "little") + head[name]["data_offsets"][0]
    data[start : start + 2] = b"\xc0\x7f"
    file.write_bytes(data)


def test_a_source_that_turns_out_bad_leaves_whole_layers_only(tmp_path, seed):
    tiny.write(tmp_path / "model", seed, [1, 2], tiny.config(2, 2, 32, 32))
    poison(tmp_path / "model")
    with pytest.raises(InputError, match=r"layers\.2\.mlp\.experts\.1\.down_proj\.weight_scale.*(?s:.)*NaN or inf=1"):
        pack_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert names(tmp_path / "packed") == FILES[:2]
    with pytest.raises(InputError):
        pack_checkpoint(tmp_path / "model", tmp_path / "other", layers=[2])
    assert not (tmp_path / "other").exists()


def test_an_interrupt_cleans_up(model, tmp_path):
    def stop(*call):
        raise KeyboardInterrupt

    (tmp_path / "packed").mkdir()
    with pytest.raises(KeyboardInterrupt):
        pack_checkpoint(model, tmp_path / "packed", progress=stop)
    assert names(tmp_path / "packed") == [], "a folder that was there stays"


def test_one_writer_at_a_time(model, tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="one process at a time"):
            pack_checkpoint(model, tmp_path)
    finally:
        os.close(handle)
    assert pack_checkpoint(model, tmp_path, layers=[1]).written == (1,)


@pytest.mark.parametrize("change", [{"ep": 2}, {"tp": 2, "rank": 1}, {"interleave": False}], ids=str)
def test_a_folder_of_another_packing_is_left_alone(model, tmp_path, change):
    pack_checkpoint(model, tmp_path / "packed", layers=[1])
    before = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "packed").iterdir())]
    with pytest.raises(InputError, match=f"hold this packing.*(?s:.)*{'interleave' if 'interleave' in change else 'share'}="):
        pack_checkpoint(model, tmp_path / "packed", **change)
    assert [(path.name, path.read_bytes()) for path in sorted((tmp_path / "packed").iterdir())] == before


def test_another_source_and_a_folder_of_something_else(model, tmp_path, seed):
    pack_checkpoint(model, tmp_path / "packed", layers=[1])
    tiny.write(tmp_path / "model", seed, [1, 2, 3], tiny.config(3, EXPERTS, 96, 64, torch_dtype="bfloat16"))
    with pytest.raises(InputError, match="source="):
        pack_checkpoint(tmp_path / "model", tmp_path / "packed")
    with pytest.raises(InputError, match=r"holds=config\.json"):
        pack_checkpoint(model, model)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="must be a folder"):
        pack_checkpoint(model, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_memory_is_less_than_two_experts_whatever_the_layer(tmp_path, seed):
    inner, hidden = 128, 512
    beyond = []
    for experts in (2, 4):
        tiny.write(tmp_path / f"model{experts}", seed, [1], tiny.config(1, experts, hidden, inner))
        with LiveBytes() as live:
            pack_checkpoint(tmp_path / f"model{experts}", tmp_path / f"packed{experts}")
        beyond.append(live.peak)
    assert 0 < beyond[1] < 2 * 3 * inner * hidden * 9 // 16 and abs(beyond[1] - beyond[0]) < 2048


def test_the_index_is_replaced_as_a_whole(model, tmp_path, monkeypatch):
    pack_checkpoint(model, tmp_path / "packed", layers=[1])
    before = (tmp_path / "packed" / INDEX).read_bytes()

    def torn(source, target):
        raise OSError(errno.EIO, "Input/output error")

    index = read_index(tmp_path / "packed")
    monkeypatch.setattr(os, "replace", torn)
    with pytest.raises(OSError):
        PackedIndex(index.packing, (1, 2), index.layers).write(tmp_path / "packed")
    assert (tmp_path / "packed" / INDEX).read_bytes() == before and names(tmp_path / "packed") == FILES[:2]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_index_says_so_last(model, tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def named(path: str) -> str:
        return Path(path).name.lstrip(".").split(".")[0] if Path(path).is_file() else "folder"

    monkeypatch.setattr(os, "fsync", lambda handle: (events.append(("sync", named(os.readlink(f"/proc/self/fd/{handle}")))), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda one, other: (events.append(("name", named(one))), replace(one, other)))
    pack_checkpoint(model, tmp_path / "packed", layers=[1])
    index = [("sync", "chord-packed"), ("name", "chord-packed"), ("sync", "folder")]
    layer = [("sync", "layer-00001"), ("name", "layer-00001"), ("sync", "folder")]
    assert events == [*index, layer[0], *layer, *index], "the header is written with a sync of its own"
