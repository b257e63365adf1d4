"""Packed folders that are not what they should be: refused when loaded, told when verified, whoever changed them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from chord_jit.errors import InputError
from chord_jit.formats.packed_check import verify_packed
from chord_jit.formats.packed_index import INDEX, read_index
from chord_jit.formats.packed_load import load_packed
from chord_jit.formats.packed_write import pack_checkpoint
from tests.unit.formats import tiny_layers as tiny

EXPERTS = 4
FIRST, SECOND = "layer-00001.safetensors", "layer-00002.safetensors"


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    """A folder with a checkpoint ``model`` and ``packed``, rank 1 of its two."""
    folder = tmp_path_factory.mktemp("origin")
    tiny.write(folder / "model", 9, [1, 2], tiny.config(2, EXPERTS, 96, 64), shards=1)
    pack_checkpoint(folder / "model", folder / "packed", ep=2, rank=1)
    return folder


@pytest.fixture
def packed(origin, tmp_path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(origin / "packed", tmp_path / "packed"))


def edit(folder: Path, change) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


def leads_out(folder: Path) -> None:
    shutil.move(folder / FIRST, folder.parent / "elsewhere")
    (folder / FIRST).symlink_to(folder.parent / "elsewhere")


def in_header(old: bytes, new: bytes):
    def damage(folder: Path) -> None:
        data = (folder / FIRST).read_bytes()
        assert old in data and len(old) == len(new)
        (folder / FIRST).write_bytes(data.replace(old, new, 1))

    return damage


def four_bits(folder: Path) -> None:
    """The same bytes, said to be twice as many elements of half the size."""
    in_header(b'"U8","shape":[2,1,2,4608]', b'"F4","shape":[2,1,2,9216]')(folder)


def other_tensors(folder: Path) -> None:
    tensors = load_file(folder / FIRST)
    save_file({**tensors, "more": tensors["layers.1.down"][:1].clone()}, folder / FIRST)


def fifo(folder: Path) -> None:
    (folder / FIRST).unlink()
    os.mkfifo(folder / FIRST)


#: Damages of a file, and what loading says. None of them changes the index.
FILES = {
    "missing": (lambda folder: (folder / FIRST).unlink(), "must be there and regular"),
    "a folder": (lambda folder: ((folder / FIRST).unlink(), (folder / FIRST).mkdir()), "must be there and regular"),
    "a pipe": (fifo, "must be there and regular"),
    "a link out": (leads_out, "must lie in its folder.*leads to=.*elsewhere"),
    "truncated": (lambda folder: (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:-1]), "size of its layer.*bytes=.*wanted="),
    "empty": (lambda folder: (folder / FIRST).write_bytes(b""), "size of its layer.*bytes=0"),
    "longer": (lambda folder: (folder / FIRST).write_bytes((folder / FIRST).read_bytes() + b"x"), "size of its layer"),
    "another layer's": (lambda folder: shutil.copy(folder / SECOND, folder / FIRST), r"tensors of its layer.*layers\.2\.down"),
    "another dtype": (in_header(b'"U8"', b'"I8"'), r"must be uint8.*torch\.int8"),
    "a dtype that torch lacks": (four_bits, "must be uint8|must be safetensors"),
    "another shape": (in_header(b"[2,1,2,4608]", b"[1,2,2,4608]"), "must be uint8 of the index's shape"),
    "another name": (in_header(b"layers.1.down", b"layers.9.down"), r"tensors of its layer.*layers\.9\.down"),
    "no header": (in_header(b'{"__metadata__"', b"{'__metadata__'"), "must be safetensors"),
    "more tensors": (other_tensors, "size of its layer|tensors of its layer"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_by_loading_and_by_verifying(packed, name):
    damage, says = FILES[name]
    damage(packed)
    with pytest.raises(InputError, match=f"(?s){FIRST}.*{says}.*chord pack"):
        load_packed(packed)
    assert list(load_packed(packed, [2])) == [2], "the other layer is whole"
    (problem,) = verify_packed(packed).problems
    assert problem.startswith("layer 1: ")


def test_a_misplaced_tensor_of_the_right_size(packed):
    """A shorter header and a gap before the first tensor: the size is right, so that safetensors must refuse the gap."""
    data = (packed / FIRST).read_bytes()
    head = int.from_bytes(data[:8], "little")
    body = data[8 + head :]
    text = json.loads(data[8 : 8 + head])
    for name in list(text):
        if name != "__metadata__":
            text[name]["data_offsets"] = [at + 1 for at in text[name]["data_offsets"]]
    new = json.dumps(text, separators=(",", ":")).encode().ljust(head - 1)
    (packed / FIRST).write_bytes((head - 1).to_bytes(8, "little") + new + b"\0" + body)
    with pytest.raises(InputError, match="must be safetensors"):
        load_packed(packed)


def test_a_link_within_the_folder_is_no_harm(packed):
    (packed / FIRST).rename(packed / "kept")
    (packed / FIRST).symlink_to("kept")
    assert list(load_packed(packed)) == [1, 2] and not verify_packed(packed).problems


@pytest.mark.parametrize("where", [-1, -4608, 5000])
def test_one_flipped_bit_is_found_by_its_checksum(packed, where):
    data = bytearray((packed / SECOND).read_bytes())
    data[where] ^= 16
    (packed / SECOND).write_bytes(data)
    load_packed(packed)
    found = verify_packed(packed)
    assert len(found.problems) == 1 and "layer 2: layers.2." in found.problems[0] and "SHA-256 differs" in found.problems[0]
    assert verify_packed(packed, sample=None).problems == found.problems


def test_all_is_well(origin):
    calls = []
    found = verify_packed(origin / "packed", source=origin / "model", sample=None, progress=lambda *call: calls.append(call))
    assert (found.layers, found.compared, found.problems) == (2, 4, ()) and calls == [(1, 2, 1), (2, 2, 2)]
    assert found.bytes == sum(one.gate_up.nbytes + one.down.nbytes for one in load_packed(origin / "packed").values())


def test_layers_that_are_not_written_are_a_problem(packed):
    edit(packed, lambda index: index["layers"].pop("2"))
    assert verify_packed(packed).problems == ("layer 2: not written",)


def set_in(*place):
    *path, last, value = place

    def change(content):
        for name in path:
            content = content[name]
        content[last] = value

    return change


OUT = [f"/etc/{FIRST}", f"../packed/{FIRST}", f"./{FIRST}", "..", "", SECOND, f"{FIRST}\0", 7, None]
#: Changes of the index, and what loading says.
INDEXES = {
    **{f"file {path!r}": (set_in("layers", "1", "file", path), f"layer 1.*file=.*wanted {FIRST}") for path in OUT},
    "another format": (set_in("format", "gguf"), "format=gguf"),
    "another version": (set_in("layout_version", 2), r"layout_version=2 \(wanted 1\).*pack the checkpoint again"),
    "a rank that is none": (set_in("share", "rank", 2), "rank=2"),
    "ranks that do not divide": (set_in("share", "ep", 3), "ep=3"),
    "a share that cuts a group": (set_in("share", "tp", 4), "tp=4"),
    "another rank": (set_in("share", "rank", 0), r"local\.experts=\[2, 4\] \(wanted \[0, 2\]\)"),
    "huge sizes": (set_in("model", "hidden_size", 1 << 62), "hidden_size="),
    "negative sizes": (set_in("model", "experts", -4), "experts=-4"),
    "other sizes": (set_in("model", "hidden_size", 40000), r"layer 1.*bytes=.*layers\.1\.gate_up\.k=96 \(wanted 40000\)"),
    "no interleave": (lambda index: index.pop("interleave"), "interleave=None"),
    "no hash": (lambda index: index.pop("source"), "config_sha256=None"),
    "a layer beyond": (set_in("wanted", [1]), "some of those wanted"),
    "a layer by another name": (lambda index: index["layers"].update({"01": index["layers"].pop("1")}), "some of those wanted"),
    "layers out of order": (set_in("wanted", [2, 1]), "wanted must be layer numbers"),
    "no layers wanted": (set_in("wanted", []), "wanted must be layer numbers"),
    "a layer that is a list": (set_in("layers", "1", []), "must have a SHA-256"),
    "no checksum": (set_in("layers", "1", "tensors", "layers.1.down", "sha256", "f" * 63), "64 hex digits"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_hostile_index_is_refused(packed, name):
    change, says = INDEXES[name]
    edit(packed, change)
    for use in (load_packed, verify_packed):
        with pytest.raises(InputError, match=f"(?s){says}"):
            use(packed)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000])
def test_an_index_that_is_none(packed, text):
    (packed / INDEX).write_text(text)
    with pytest.raises(InputError, match="JSON"):
        load_packed(packed)


def test_no_index_at_all(packed, tmp_path):
    with pytest.raises(InputError, match="pass the folder of one rank"):
        packed.rename(tmp_path / "rank-00000-of-00002")
        load_packed(tmp_path)
    with pytest.raises(InputError, match="make one with chord pack"):
        load_packed(tmp_path / "nothing")


def leaves(content: object, path: tuple = ()) -> list[tuple]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [found for key, value in items for found in [(*path, key), *leaves(value, (*path, key))]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON)
def test_whatever_stands_in_the_index_is_right_or_refused(packed, data, value):
    """One field, or one part, is replaced: it is refused, or what can be loaded afterwards is what was packed."""
    good = read_index(packed)
    text = (packed / INDEX).read_text()
    content = json.loads(text)
    *path, last = data.draw(st.sampled_from(leaves(content)))
    place = content
    for name in path:
        place = place[name]
    before, place[last] = place[last], value
    try:
        (packed / INDEX).write_text(json.dumps(content))
        found = read_index(packed)
        assert last in ("made_by", "layers", "wanted") or before == value
        assert found.packing == good.packing and found.layers.items() <= good.layers.items()
        assert last == "wanted" or set(found.wanted) == set(good.wanted)
    except InputError:
        assert last != "made_by"
    finally:
        (packed / INDEX).write_text(text)


def rewrite(folder: Path, name: str, change) -> None:
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors[name])
    save_file(tensors, folder / "model.safetensors")


WEIGHT = "model.layers.2.mlp.experts.{}.{}_proj.weight_{}"


@pytest.mark.parametrize("proj", ["gate", "up", "down"])
@pytest.mark.parametrize("part, wrong", [("packed", (1, 0)), ("scale", (0, 1))])
def test_a_source_that_is_another_is_found_code_by_code(origin, tmp_path, proj, part, wrong):
    shutil.copytree(origin / "model", tmp_path / "model")
    rewrite(tmp_path / "model", WEIGHT.format(3, proj, part), lambda tensor: tensor.view(-1)[-1].neg_())
    found = verify_packed(origin / "packed", source=tmp_path / "model", sample=None)
    says = f"{proj} differs from the source in {wrong[0]} words of eight codes and {wrong[1]} scales"
    assert found.problems == (f"layer 2, expert 3: {says}",)


def test_a_sample_is_of_some_experts_and_the_same_in_every_run(origin, tmp_path):
    shutil.copytree(origin / "model", tmp_path / "model")
    for expert in (2, 3):
        rewrite(tmp_path / "model", WEIGHT.format(expert, "up", "scale"), lambda tensor: tensor.neg_())
    told = [verify_packed(origin / "packed", source=tmp_path / "model", sample=1) for _ in range(12)]
    assert len(set(told)) == 1 and told[0].compared == 2 and len(told[0].problems) == 1
    assert len(verify_packed(origin / "packed", source=tmp_path / "model", sample=9).problems) == 2


def test_another_config_and_another_model(origin, tmp_path, seed):
    shutil.copytree(origin / "model", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text((origin / "model" / "config.json").read_text() + "\n")
    found = verify_packed(origin / "packed", source=tmp_path / "model")
    assert found.problems == ("the config.json of the source is not the one that was packed",) and found.compared == 4
    tiny.write(tmp_path / "other", seed, [1, 2], tiny.config(2, EXPERTS, 96, 32))
    with pytest.raises(InputError, match=r"one model.*(?s:.)*source=\(96, 32, 4\), packed=\(96, 64, 4\)"):
        verify_packed(origin / "packed", source=tmp_path / "other")
