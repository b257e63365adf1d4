"""Which layers the plugin serves, what it says of them, and what it makes of their weights."""

from __future__ import annotations

import sys

import pytest
import torch

from chord_jit import knobs, pack_w4a16, unpack_w4a16
from chord_jit.errors import InputError
from chord_jit.integrations import vllm as plugin
from chord_jit.integrations.vllm import notes
from chord_jit.integrations.vllm.layer import ServedLayer
from tests.unit.integrations import fake_vllm
from tests.unit.integrations.fake_vllm import Facade, HummingWeightSchema, Input, converted, install, prepared, source


@pytest.fixture
def facade(monkeypatch) -> Facade:
    monkeypatch.setattr(notes, "_said", set())
    found = install(monkeypatch, Facade())
    plugin.register()
    with knobs.scope(CHORD_BACKEND="reference"):
        yield found


def test_a_layer_that_we_serve(facade, caplog):
    caplog.set_level("INFO")
    schema, tensors = converted(facade)
    config, packed = prepared(facade, weight_schema=schema, tensors=tensors)
    assert isinstance(config, ServedLayer) and isinstance(config, fake_vllm.LayerConfig) and facade.reached == []
    assert (config.shape_n, config.shape_k, config.num_experts, config.pad_shape_n, config.pad_shape_k) == (128, 64, 2, 0, 0)
    assert (config.a_dtype, config.c_dtype, config.input_quant_mode, config.sm_version) == ("bfloat16", "bfloat16", "none", 90)
    assert list(packed) == ["weight"] and packed["weight"].shape[0] == 2
    codes, scales = unpack_w4a16(config.packed(packed["weight"]))
    words = (codes.view(2, 128, 8, 8).long() << torch.arange(0, 32, 4)).sum(-1).int()
    assert torch.equal(words, tensors["weight"]) and torch.equal(scales, tensors["weight_scale"])
    prepared(facade)
    assert [record.getMessage() for record in caplog.records] == [
        "chord_jit: serves MoE layers with 2 experts, N 128, K 64: INT4 in groups of 32, BF16 activations"
    ]


def test_conversion_keeps_the_codes_where_they_are(facade):
    tensors = {"weight_packed": torch.zeros(2, 128, 8, dtype=torch.int32), "weight_scale": torch.ones(2, 128, 2).bfloat16()}
    schema, found = source(facade).convert_humming(tensors, [64, 64], [64], torch.bfloat16, 2)
    assert isinstance(schema, HummingWeightSchema) and schema.b_dtype == "uint4" and schema.gated
    assert found["weight"].data_ptr() == tensors["weight_packed"].data_ptr()
    assert found["weight_scale"].data_ptr() == tensors["weight_scale"].data_ptr()
    assert not source(facade).convert_humming(tensors, [128], [64], torch.bfloat16, 2)[0].gated


@pytest.mark.parametrize(
    "changes",
    [{"group_size": 64}, {"num_bits": 8}, {"symmetric": False}, {"actorder": "group"}, {"type": "float"}, {"format": "int-quantized"},
     {"strategy": "channel"}],
    ids=str,
)  # fmt: skip
def test_other_schemes_keep_hummings_schema(facade, changes):
    assert type(source(facade, **changes)) is fake_vllm.CompressedTensorsWeightSchema


@pytest.mark.parametrize("dtype, experts", [(torch.float16, 2), (torch.bfloat16, None), (torch.bfloat16, 0)])
def test_conversion_is_hummings_for_what_we_will_not_serve(facade, dtype, experts):
    schema, tensors = source(facade).convert_humming({"weight_packed": torch.zeros(1)}, [64, 64], [64], dtype, experts)
    assert (schema.b_dtype, tensors) == ("float4e0m3", {"weight": "re-encoded"})


def test_conversion_keeps_a_bias_for_humming(facade):
    """Whatever a conversion leaves out, vLLM deletes."""
    given = {"weight_packed": torch.zeros(2, 64, 8, dtype=torch.int32), "weight_scale": torch.ones(2, 64, 2).bfloat16()}
    schema, tensors = source(facade).convert_humming({**given, "bias": torch.ones(2, 64)}, [64], [64], torch.bfloat16, 2)
    assert (schema.b_dtype, tensors) == ("float4e0m3", {"weight": "re-encoded"})


@pytest.mark.parametrize("changes, said", [({"torch_dtype": torch.float16}, "torch.float16"), ({"has_bias": True}, "bias")])
def test_the_reason_is_why_the_conversion_was_left_to_humming(facade, caplog, changes, said):
    """Not the form that Humming's own conversion gave the weights, which follows from it."""
    caplog.set_level("INFO")
    assert prepared(facade, weight_schema=HummingWeightSchema(b_dtype="float4e0m3"), **changes) == "upstream"
    assert said in caplog.text and "float4e0m3" not in caplog.text


DECLINED = (
    ({"num_experts": None}, "leaves dense layers to Humming: no experts"),
    ({"weight_schema": HummingWeightSchema(b_dtype="float4e0m3")}, "float4e0m3 converted by Humming, not compressed-tensors INT4"),
    ({"weight_schema": HummingWeightSchema()}, "uint4 converted by Humming"),
    ({"torch_dtype": torch.float16}, "activations are torch.float16, not BF16"),
    ({"input_schema": Input("float8e4m3")}, "activations are float8e4m3, not BF16"),
    ({"has_bias": True}, "it has bias"),
    ({"shape_n": 132}, "N must be a multiple of 8 and K of 32"),
    ({"shape_k": 48}, "N must be a multiple of 8 and K of 32"),
)


@pytest.mark.parametrize("changes, said", DECLINED, ids=[said for _, said in DECLINED])
def test_a_layer_that_breaks_a_rule_goes_to_humming(facade, caplog, changes, said):
    caplog.set_level("INFO")
    assert prepared(facade, **changes) == prepared(facade, **changes) == "upstream"
    assert facade.reached == [("prepare", changes.get("shape_n", 128), changes.get("shape_k", 64))] * 2
    text = [record.getMessage() for record in caplog.records]
    assert len(text) == 1 and said in text[0], text


def test_zero_points_and_hadamard_transforms_go_to_humming(facade):
    schema, tensors = converted(facade)
    assert prepared(facade, tensors={**tensors, "zero_point": tensors["weight"]}) == "upstream"
    schema.hadamard_block_size = 64
    assert prepared(facade, weight_schema=schema) == "upstream"
    assert any("zero_point" in line for line in notes._said) and any("Hadamard" in line for line in notes._said)


def test_batch_invariance_goes_to_humming(facade, monkeypatch):
    monkeypatch.setattr(sys.modules["vllm"].envs, "VLLM_BATCH_INVARIANT", True)
    assert prepared(facade) == "upstream"


def test_weights_on_the_cpu_without_the_reference_backend_go_to_humming(facade):
    with knobs.scope(CHORD_BACKEND="kernels"):
        assert source(facade).convert_humming({"weight_packed": torch.zeros(1)}, [64, 64], [64], torch.bfloat16, 2)[1] == {
            "weight": "re-encoded"
        }
    given = converted(facade)
    with knobs.scope(CHORD_BACKEND="kernels"):
        assert prepared(facade, weight_schema=given[0], tensors=given[1]) == "upstream"
    assert any("a CUDA device must be present" in line for line in notes._said)


def test_a_scale_that_is_not_finite_is_an_error(facade):
    schema, tensors = converted(facade)
    tensors["weight_scale"][1, 5, 0] = torch.nan
    with pytest.raises(InputError, match="finite"):
        prepared(facade, weight_schema=schema, tensors=tensors)


def test_the_older_face_prepares_and_packs_in_two_calls(monkeypatch):
    facade = install(monkeypatch, Facade(older=True), "0.30.0")
    plugin.register()
    with knobs.scope(CHORD_BACKEND="reference"):
        schema, tensors = converted(facade)
        asked = {"shape_n": 128, "shape_k": 64, "weight_schema": schema, "num_experts": 2, "torch_dtype": torch.bfloat16}
        config = facade.prepare_layer_config(**asked)
        packed = facade.transform_humming_tensors(config, tensors)
        assert isinstance(config, ServedLayer) and facade.reached == []
        assert torch.equal(packed["weight"], pack_w4a16(tensors["weight"], tensors["weight_scale"]).data)
        assert facade.prepare_layer_config(**{**asked, "num_experts": 0}) == "upstream"
        assert facade.transform_humming_tensors("theirs", tensors) == "upstream"
        x = torch.randn(3, 64).bfloat16()
        assert facade.may_quant_input(config, x)[0] is x
