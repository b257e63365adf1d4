"""config.json: the shape of the experts, and which quantisation schemes are refused for which reason."""

from __future__ import annotations

import json

import pytest

from chord_jit.errors import InputError
from chord_jit.formats.model_config import ModelShape, read_model_shape, require_int4_group32
from tests.unit.formats.tiny_checkpoint import config

KIMI = {
    "hidden_size": 7168, "moe_intermediate_size": 2048, "n_routed_experts": 384, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "first_k_dense_replace": 1, "moe_layer_freq": 1,
}


def test_kimi_from_mapping_file_and_folder(tmp_path):
    want = ModelShape(7168, 2048, 384, 8, tuple(range(1, 61)))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": KIMI}))
    assert read_model_shape(KIMI) == want
    assert read_model_shape(tmp_path) == want
    assert read_model_shape(str(tmp_path / "config.json")) == want


@pytest.mark.parametrize(("dense", "every", "layers"), [(0, 1, (0, 1, 2, 3, 4)), (2, 1, (2, 3, 4)), (1, 2, (2, 4)), (5, 1, ())])
def test_layers_with_experts(dense, every, layers):
    changes = {"num_hidden_layers": 5, "first_k_dense_replace": dense, "moe_layer_freq": every}
    assert read_model_shape(KIMI | changes).moe_layers == layers


@pytest.mark.parametrize("name", ["hidden_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "num_hidden_layers"])
@pytest.mark.parametrize("value", [None, 0, -8, "8", 8.0, True], ids=repr)
def test_a_field_that_is_missing_or_impossible(name, value):
    with pytest.raises(InputError, match=f"{name} must be a positive integer"):
        read_model_shape(KIMI | {name: value})


MOST = {
    "hidden_size": 1 << 24, "moe_intermediate_size": 1 << 24, "n_routed_experts": 1 << 16, "num_experts_per_tok": 1 << 16,
    "num_hidden_layers": 1 << 16, "first_k_dense_replace": 1 << 16, "moe_layer_freq": 1 << 16,
}  # fmt: skip


@pytest.mark.parametrize("name", MOST)
def test_no_count_is_larger_than_what_can_be_handled(name):
    """Layers and experts are listed one by one, and sizes are multiplied: a number that is none would take all memory, or overflow."""
    largest = KIMI | {"n_routed_experts": 1 << 16, name: MOST[name]}
    assert read_model_shape(largest).experts == 1 << 16
    for value in (MOST[name] + 1, 200_000_000, 10**18, 10**30):
        with pytest.raises(InputError, match=f"{name} must be a positive integer, {MOST[name]} at most.*(?s:.)*{name}={value}"):
            read_model_shape(largest | {name: value})


QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 94, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def test_qwen3_moe_names_its_experts_otherwise(tmp_path):
    want = ModelShape(4096, 1536, 128, 8, tuple(range(94)))
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert read_model_shape(QWEN3) == read_model_shape(tmp_path) == read_model_shape({"text_config": QWEN3}) == want
    assert read_model_shape(KIMI | {"num_experts": 5}).experts == 384, "n_routed_experts comes first"


@pytest.mark.parametrize(("dense", "every", "layers"), [([], 1, (0, 1, 2, 3, 4)), ([0, 3], 1, (1, 2, 4)), ([3], 2, (1,)), (None, 3, (2,))])
def test_layers_of_qwen3_with_experts(dense, every, layers):
    changes = {"num_hidden_layers": 5, "mlp_only_layers": dense, "decoder_sparse_step": every, "first_k_dense_replace": 4}
    assert read_model_shape(QWEN3 | changes).moe_layers == layers


@pytest.mark.parametrize("name", ["hidden_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok", "num_hidden_layers"])
@pytest.mark.parametrize("value", [None, 0, -8, "8", 8.0, True], ids=repr)
def test_a_field_of_qwen3_that_is_missing_or_impossible(name, value):
    with pytest.raises(InputError, match=f"{name} must be a positive integer"):
        read_model_shape(QWEN3 | {name: value})


def test_without_experts_under_either_name():
    with pytest.raises(InputError, match="n_routed_experts must be a positive integer"):
        read_model_shape({name: value for name, value in QWEN3.items() if name != "num_experts"})
    with pytest.raises(InputError, match="num_experts_per_tok=9, num_experts=8"):
        read_model_shape(QWEN3 | {"num_experts": 8, "num_experts_per_tok": 9})


def quantization(**changes) -> dict:
    content = config()
    content["quantization_config"] |= changes
    return content


def group(**changes) -> dict:
    content = config()
    content["quantization_config"]["config_groups"]["group_0"] |= changes
    return content


REFUSED = [
    (config(num_bits=8), "group_0.num_bits=8"),
    (config(type="float"), "group_0.type=float"),
    (config(strategy="channel"), "group_0.strategy=channel"),
    (config(group_size=128), "group_0.group_size=128"),
    (config(symmetric=False), "group_0.symmetric=False"),
    (config(actorder="group"), "group_0.actorder=group"),
    (config(dynamic=True), "group_0.dynamic=True"),
    (quantization(quant_method="gptq"), "quant_method=gptq"),
    (quantization(format="mxfp4-pack-quantized"), "format=mxfp4-pack-quantized"),
    (quantization(quantization_status="frozen"), "quantization_status=frozen"),
    (quantization(kv_cache_scheme={"num_bits": 8, "type": "float"}), "kv_cache_scheme="),
    (quantization(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config="),
    (quantization(transform_config={"config_groups": {"R1": {}}}), "transform_config="),
    (quantization(config_groups={}), "num_bits=None"),
    (quantization(config_groups={"a": config()["quantization_config"]["config_groups"]["group_0"], "b": {}}), "b.num_bits=None"),
    (quantization(config_groups={"a": {"weights": None, "input_activations": {"num_bits": 8}}}), "a.input_activations="),
    (quantization(config_groups={"a": "int4"}), "a.num_bits=None"),
    (group(output_activations={"num_bits": 8}), "group_0.output_activations="),
    (group(format="int-quantized"), "group_0.format=int-quantized"),
    (config(block_structure=[128, 128]), r"group_0.block_structure=\[128, 128\]"),
    (KIMI, "quantization_config"),
]


@pytest.mark.parametrize(("content", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_v51_other_schemes_are_refused_by_name(content, says):
    with pytest.raises(InputError, match=says):
        require_int4_group32(content)


def test_the_scheme_of_kimi_is_accepted_wherever_it_lies():
    require_int4_group32(config())
    require_int4_group32({"text_config": config()})
    require_int4_group32({"text_config": KIMI, "quantization_config": config()["quantization_config"]})


def test_more_experts_a_token_than_there_are():
    assert read_model_shape(KIMI | {"n_routed_experts": 8, "num_experts_per_tok": 8}).top_k == 8
    with pytest.raises(InputError, match="num_experts_per_tok=9, n_routed_experts=8"):
        read_model_shape(KIMI | {"n_routed_experts": 8, "num_experts_per_tok": 9})


@pytest.mark.parametrize("text", ["[1, 2]", "{", "\udcff", "[" * 100_000], ids=["list", "cut", "bytes", "deep"])
def test_a_file_that_is_no_json_object(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"read config\.json"):
        read_model_shape(tmp_path)
