"""Loading a layer: every variant of the directory layout, and every way in which a checkpoint can be wrong."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from chord_jit.errors import InputError
from chord_jit.formats import checkpoint, packed_write
from chord_jit.formats.checkpoint import load_moe_layer
from chord_jit.formats.w4a16 import pack_w4a16
from tests.unit.formats import tiny_checkpoint as tiny

EXPERT = "model.layers.1.mlp.experts"
INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def expected(known, experts, interleave):
    (gate, gate_scale), (up, up_scale), (down, down_scale) = ((c[experts], s[experts]) for c, s in known.values())
    return pack_w4a16(gate, gate_scale, up=up, up_scale=up_scale, interleave=interleave), pack_w4a16(down, down_scale)


# prefix of the names, whether the config is nested in text_config, number of shards, dtype of weight_shape
LAYOUTS = [
    ("", False, 3, torch.int64),
    ("language_model.", True, 2, torch.int32),
    ("language_model.", False, 1, torch.int64),
    ("", True, 1, torch.int64),
]


@pytest.mark.parametrize(("prefix", "nested", "shards", "shape_dtype"), LAYOUTS)
@pytest.mark.parametrize("interleave", [True, False])
def test_layer_is_what_its_codes_pack_to(tmp_path, seed, prefix, nested, shards, shape_dtype, interleave):
    known = tiny.matrices(seed)
    content = {"model_type": "kimi_k25", "text_config": tiny.config()} if nested else tiny.config()
    tiny.write(tmp_path, content, tiny.tensors_of(known, prefix, shape_dtype), shards)
    weights = load_moe_layer(tmp_path, 1, interleave=interleave)
    gate_up, down = expected(known, list(range(tiny.EXPERTS)), interleave)
    assert torch.equal(weights.gate_up.data, gate_up.data)
    assert torch.equal(weights.down.data, down.data)
    assert (weights.gate_up.n, weights.gate_up.k, weights.gate_up.interleaved) == (2 * tiny.INNER, tiny.HIDDEN, interleave)
    assert (weights.down.n, weights.down.k, weights.down.interleaved) == (tiny.HIDDEN, tiny.INNER, False)


@pytest.mark.parametrize("experts", [[2], [3, 1], range(1, 3)], ids=str)
def test_local_experts_keep_the_order_asked_for(tmp_path, seed, experts):
    known = tiny.matrices(seed)
    tiny.write(tmp_path, tiny.config(), tiny.tensors_of(known))
    calls = []
    weights = load_moe_layer(tmp_path, 1, experts=experts, progress=lambda *call: calls.append(call))
    gate_up, down = expected(known, list(experts), True)
    assert torch.equal(weights.gate_up.data, gate_up.data)
    assert torch.equal(weights.down.data, down.data)
    assert calls == [(i + 1, len(experts), expert) for i, expert in enumerate(experts)]


def test_shards_of_other_experts_may_be_absent(tmp_path, seed):
    known = tiny.matrices(seed)
    tensors = tiny.tensors_of(known)
    here = {name: tensor for name, tensor in tensors.items() if f"{EXPERT}.2." in name}
    tiny.write(tmp_path, tiny.config(), here, shards=1)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    weight_map = {name: "a.safetensors" if name in here else "absent.safetensors" for name in tensors}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(load_moe_layer(tmp_path, 1, experts=[2]).down.data, expected(known, [2], True)[1].data)
    with pytest.raises(InputError, match=r"absent\.safetensors"):
        load_moe_layer(tmp_path, 1, experts=[2, 3])


def test_what_lies_beside_other_experts_and_modules_is_no_matter(tmp_path, seed):
    known = tiny.matrices(seed)
    names = ("experts.3.up_proj.bias", "experts.1.up_proj_old.weight", "experts.1.norm.weight", "experts2.1.up_proj.bias", "experts.bias")
    others = [f"model.layers.1.mlp.{name}" for name in names]
    tiny.write(tmp_path, tiny.config(), tiny.tensors_of(known) | {name: torch.zeros(2) for name in others})
    assert torch.equal(load_moe_layer(tmp_path, 1, experts=[1]).down.data, expected(known, [1], True)[1].data)
    with pytest.raises(InputError, match=r"experts\.3\.up_proj\.bias"):
        load_moe_layer(tmp_path, 1, experts=[1, 3])


def rewrite(folder, file, change):
    """Loads a shard, applies ``change`` to its tensors and writes it back."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / file).items()}
    change(tensors)
    save_file(tensors, folder / file)


def truncate(folder):
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[: len(data) - 100])


def no_header(folder):
    (folder / SECOND).write_bytes(b"\x00\x01")


def drop_from_shard(folder):
    def change(tensors):
        del tensors[sorted(tensors)[0]]

    rewrite(folder, SECOND, change)


def edit_index(change):
    """A damage of the index: ``change`` gets its content."""

    def damage(folder):
        path = folder / INDEX
        index = json.loads(path.read_text())
        change(index)
        path.write_text(json.dumps(index))

    return damage


def list_in(name, file):
    """A damage that lists ``name`` as lying in ``file``."""
    return edit_index(lambda index: index["weight_map"].update({name: file}))


def forget_expert_3(index):
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if ".experts.3." not in name}


def edit_tensor(name, change):
    """A damage that replaces one tensor of the layer, whichever shard it lies in."""

    def damage(folder):
        file = json.loads((folder / INDEX).read_text())["weight_map"][name]
        rewrite(folder, file, lambda tensors: tensors.__setitem__(name, change(tensors[name])))

    return damage


def poison(scale):
    scale[7, 1] = float("nan")
    return scale


def four_bits(folder):
    """A header that says F4, of four times as many elements, where it said BF16."""
    data = (folder / SECOND).read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    entry = next(entry for entry in head.values() if entry["dtype"] == "BF16")
    entry |= {"dtype": "F4", "shape": [entry["shape"][0], entry["shape"][1] * 4]}
    text = json.dumps(head, separators=(",", ":")).encode()
    (folder / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def pipe(folder):
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)


GATE, DOWN = f"{EXPERT}.2.gate_proj.weight", f"{EXPERT}.3.down_proj.weight"
DAMAGES = {
    "truncated shard": (truncate, rf"open {SECOND}.*complete"),
    "no header": (no_header, rf"open {SECOND}.*complete"),
    "missing shard": (lambda folder: (folder / SECOND).unlink(), rf"open {SECOND}.*regular file that is there"),
    "tensor not in its shard": (drop_from_shard, rf"read model\.layers.*{SECOND}"),
    "missing expert": (edit_index(forget_expert_3), rf"missing=9, of=36, first={EXPERT}\.3\.gate_proj\.weight_packed"),
    "file outside the folder": (list_in(GATE + "_packed", "../x.safetensors"), r"same folder.*\.\./x"),
    "no weight_map": (edit_index(lambda index: index.pop("weight_map")), "weight_map"),
    "index is no JSON": (lambda folder: (folder / INDEX).write_text('{"weight_'), "must be JSON"),
    "no tensors at all": (lambda folder: [path.unlink() for path in folder.glob("model*")], f"must hold {INDEX} or model"),
    "zero points": (list_in(GATE + "_zero_point", SECOND), rf"symmetric.*{GATE}_zero_point"),
    "activation order": (list_in(GATE + "_g_idx", SECOND), rf"activation order.*{GATE}_g_idx"),
    "quantised inputs": (list_in(f"{EXPERT}.2.gate_proj.input_scale", SECOND), rf"quantised inputs.*{EXPERT}\.2\.gate_proj\.input_scale"),
    **{
        f"a tensor {name}": (list_in(f"{EXPERT}.0.up_proj.{name}", SECOND), rf"and weight_shape alone.*up_proj\.{name}")
        for name in ("bias", "weight", "output_scale", "input_zero_point", "weight_global_scale", "lora_A.weight")
    },
    "shape of words": (edit_tensor(GATE + "_packed", lambda t: t[:, :-1].contiguous()), rf"read {GATE}_packed.*64, 11.*64, 12"),
    "dtype of words": (edit_tensor(GATE + "_packed", lambda t: t.long()), rf"read {GATE}_packed.*dtype=I64, wanted=I32.*only I32"),
    "dtype of scales": (edit_tensor(DOWN + "_scale", lambda t: t.half()), rf"read {DOWN}_scale.*dtype=F16, wanted=BF16.*only BF16"),
    "shape of scales": (edit_tensor(DOWN + "_scale", lambda t: t[:-8].contiguous()), rf"read {DOWN}_scale.*88, 2.*the config\.json"),
    "dtype of weight_shape": (edit_tensor(DOWN + "_shape", lambda t: t.float()), rf"read {DOWN}_shape.*dtype=F32, wanted=I64 or I32"),
    "a dtype that torch lacks": (four_bits, rf"read {EXPERT}.*dtype=F4, wanted="),
    "a pipe": (pipe, rf"open {SECOND}.*regular file"),
    "a folder for a shard": (lambda folder: ((folder / SECOND).unlink(), (folder / SECOND).mkdir()), rf"open {SECOND}.*regular file"),
    **{
        f"file {file!r}": (list_in(GATE + "_packed", file), "must lie in a file of the same folder")
        for file in ("..", ".", "", "a/b", "/etc/passwd", f"./{SECOND}", 5, None)
    },
    "a file name that is none": (list_in(GATE + "_packed", "x\0y"), "regular file"),
    "a file name that is too long": (list_in(GATE + "_packed", "x" * 5000), "regular file"),
    "weight_shape": (edit_tensor(DOWN + "_shape", lambda t: t + 8), r"weight_shape=\[104, 72\], wanted=\[96, 64\]"),
    "NaN in a scale": (edit_tensor(GATE + "_scale", poison), rf"{GATE}_scale.*gate's scales.*NaN or inf=1.*0, 7, 1.*file=.*safetensors"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json.*No such file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(tmp_path, seed, name):
    tiny.write(tmp_path, tiny.config(), tiny.tensors_of(tiny.matrices(seed)))
    load_moe_layer(tmp_path, 1)  # whole before it is damaged
    damage, says = DAMAGES[name]
    damage(tmp_path)
    with pytest.raises(InputError, match=f"(?s){says}"):
        load_moe_layer(tmp_path, 1)


@pytest.mark.parametrize(
    ("layer", "experts", "says"),
    [(0, None, "layer=0, MoE layers=1 from 1 to 1"), (2, None, "layer=2"), (1, [], "asked=0"), (1, [4], r"out of range=\[4\]"),
     (1, [-1], r"out of range=\[-1\]"), (1, [2, 2], "asked=2, different=1")],
)
def test_layers_and_experts_that_are_not_there(tmp_path, seed, layer, experts, says):
    tiny.write(tmp_path, tiny.config(), tiny.tensors_of(tiny.matrices(seed)))
    with pytest.raises(InputError, match=says):
        load_moe_layer(tmp_path, layer, experts=experts)


def test_a_shard_may_be_a_link(tmp_path, seed):
    """As in a cache of downloads, where the files lie elsewhere under the names of their hashes."""
    known = tiny.matrices(seed)
    tiny.write(tmp_path, tiny.config(), tiny.tensors_of(known))
    (tmp_path / "blobs").mkdir()
    (tmp_path / SECOND).rename(tmp_path / "blobs" / "0123")
    (tmp_path / SECOND).symlink_to("blobs/0123")
    assert torch.equal(load_moe_layer(tmp_path, 1).down.data, expected(known, range(tiny.EXPERTS), True)[1].data)


@pytest.mark.parametrize("field, value", [("hidden_size", 1 << 24), ("moe_intermediate_size", 1 << 24), ("hidden_size", 64)])
def test_sizes_that_the_tensors_do_not_have_are_refused_before_memory_or_disk_is_taken(tmp_path, seed, monkeypatch, field, value):
    tiny.write(tmp_path, tiny.config() | {field: value}, tiny.tensors_of(tiny.matrices(seed)))
    for module, name in ((checkpoint, "allocate_layer"), (packed_write, "_write_layer")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("taken"))
    for use in (lambda: load_moe_layer(tmp_path, 1), lambda: packed_write.pack_checkpoint(tmp_path, tmp_path / "packed")):
        with pytest.raises(InputError, match=f"(?s)weight_shape must be.*{value}"):
            use()
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("field", ["num_hidden_layers", "n_routed_experts"])
def test_a_model_of_more_layers_or_experts_than_there_are_is_refused_soon(tmp_path, seed, field):
    tiny.write(tmp_path, tiny.config() | {field: 1 << 16}, tiny.tensors_of(tiny.matrices(seed)))
    with pytest.raises(InputError, match="every tensor of the experts must be listed"):
        checkpoint.load_moe_layers(tmp_path)
