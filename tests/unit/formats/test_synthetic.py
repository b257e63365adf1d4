"""The synthetic checkpoint, written by compressed-tensors and read back both by that library and by our loader."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from chord_jit.errors import InputError
from chord_jit.formats.checkpoint import ModelShape, load_moe_layer, read_model_shape
from chord_jit.formats.synthetic import write_checkpoint
from chord_jit.reference.w4a16 import dequantize

pytest.importorskip("compressed_tensors", reason="compressed-tensors, of the extras demo and test, is not installed")

SIZES = {"hidden": 160, "intermediate": 96, "experts": 5, "top_k": 2, "layers": 2, "seed": 20, "shards": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "new" / "folder"
    write_checkpoint(folder, **SIZES)
    return folder


def tensors_in(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def test_directory_layout(folder):
    shards = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["config.json", "model.safetensors.index.json", *shards])
    tensors = tensors_in(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert set(index["weight_map"].values()) == set(shards)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert len(tensors) == 2 * 5 * 3 * 3
    name = "model.layers.2.mlp.experts.4.down_proj.weight"
    shapes = {part: (tensors[f"{name}_{part}"].dtype, tuple(tensors[f"{name}_{part}"].shape)) for part in ("packed", "scale", "shape")}
    assert shapes == {"packed": (torch.int32, (160, 12)), "scale": (torch.bfloat16, (160, 3)), "shape": (torch.int64, (2,))}
    assert tensors[f"{name}_shape"].tolist() == [160, 96]


def test_config(folder):
    assert read_model_shape(folder) == ModelShape(160, 96, 5, 2, (1, 2))
    quantization = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (quantization["quant_method"], quantization["format"]) == ("compressed-tensors", "pack-quantized")
    weights = quantization["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["type"], weights["group_size"], weights["symmetric"]) == (4, "int", 32, True)


def decompressed(tensors, name):
    """The library's own BF16 weight of one matrix."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    state = {part: tensors[f"{name}.{part}"] for part in ("weight_packed", "weight_scale", "weight_shape")}
    return BaseCompressor.get_value_from_registry("pack-quantized").decompress(state, scheme)["weight"]


@pytest.mark.parametrize("layer", [1, 2])
def test_loader_and_library_agree_on_every_weight(folder, layer):
    tensors, weights = tensors_in(folder), load_moe_layer(folder, layer)
    for expert in range(SIZES["experts"]):
        root = f"model.layers.{layer}.mlp.experts.{expert}"
        gate, up, down = (decompressed(tensors, f"{root}.{proj}_proj") for proj in ("gate", "up", "down"))
        assert torch.equal(dequantize(weights.gate_up, expert, variant="bf16").bfloat16(), torch.cat([gate, up]))
        assert torch.equal(dequantize(weights.down, expert, variant="bf16").bfloat16(), down)
        assert down.std() > 0.5 / SIZES["intermediate"] ** 0.5


def test_the_seed_decides_every_value(folder, tmp_path):
    changes = {"shards": 1}
    write_checkpoint(tmp_path / "same", **SIZES | changes)
    write_checkpoint(tmp_path / "other", **SIZES | changes | {"seed": 21})
    assert not (tmp_path / "same" / "model.safetensors.index.json").exists()
    first, same, other = tensors_in(folder), tensors_in(tmp_path / "same"), tensors_in(tmp_path / "other")
    packed = [name for name in first if name.endswith("_packed")]
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in packed)


IMPOSSIBLE = [{"hidden": 40}, {"intermediate": 0}, {"experts": -1}, {"top_k": 6}, {"layers": 0}, {"shards": 31}]


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=str)
def test_impossible_sizes(tmp_path, changes):
    with pytest.raises(InputError, match="write a checkpoint"):
        write_checkpoint(tmp_path / "x", **SIZES | changes)
    assert not (tmp_path / "x").exists()


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="must be empty"):
        write_checkpoint(tmp_path, **SIZES)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
