"""transformers with packed experts, on the CPU: values against the model whose experts hold the dequantised weights, memory, refusals."""

from __future__ import annotations

import copy
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch

from chord_jit import knobs
from chord_jit.errors import CaptureError, InputError
from chord_jit.formats.quantize import quantize_layer
from chord_jit.integrations import transformers as ours
from chord_jit.reference.moe import moe
from tests.unit.integrations import tiny_models as tiny
from tests.unit.integrations.agreement import assert_same_tokens, relative

pytest.importorskip("transformers")
TOKENS = 12
#: Largest relative error of logits, and of one layer's experts: roundings to BF16.
LOGITS, EXPERTS = 2e-2, 5e-3
#: Family and sizes of models whose routers choose alike: a rounding cannot turn the choice of an only layer, nor that of all experts.
ALIKE = {
    "Qwen3Moe": ("Qwen3Moe", dict(num_hidden_layers=1)),
    "Mixtral": ("Mixtral", dict(num_hidden_layers=1)),
    "DeepseekV3": ("DeepseekV3", dict(first_k_dense_replace=1)),
    "two layers, all experts": ("Qwen3Moe", dict(num_experts_per_tok=tiny.EXPERTS)),
}


@pytest.fixture(autouse=True)
def on_the_cpu():
    ours.register()
    with knobs.scope(CHORD_BACKEND="reference"), torch.no_grad():
        yield


def prompts(rows=3):
    return torch.randint(2, tiny.VOCABULARY, (rows, TOKENS))


def routed(tokens=TOKENS):
    """What a router hands to one layer's experts."""
    x = torch.randn(tokens, tiny.HIDDEN).bfloat16()
    top = torch.randn(tokens, tiny.EXPERTS).softmax(-1).topk(tiny.TOP_K, -1)
    return x, top.indices, top.values


def layer_of(model):
    return next(iter(tiny.experts_of(model).values()))


# -- values -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family, sizes", ALIKE.values(), ids=ALIKE)
def test_logits_are_those_of_the_dequantised_weights(family, sizes, seed):
    model, ids = tiny.model_of(family, seed, experts=ours.NAME, **sizes), prompts()
    want, bf16 = tiny.dequantised(model)(ids).logits, model_on_eager(model)(ids).logits
    got = ours.prepare(model)(ids).logits
    assert relative(got, want) < LOGITS < relative(bf16, want) / 3, "INT4 must show, and be told from an error"


def model_on_eager(model):
    plain = copy.deepcopy(model)
    plain.set_experts_implementation("eager")
    return plain


@pytest.mark.parametrize("family, sizes", ALIKE.values(), ids=ALIKE)
def test_generate_gives_the_tokens_of_the_dequantised_weights(family, sizes, seed):
    model = tiny.model_of(family, seed, experts=ours.NAME, **sizes)
    want = tiny.dequantised(model)
    assert_same_tokens(ours.prepare(model), want, prompts(16), least=25)


def test_a_saved_model_is_packed_after_loading(tmp_path, seed):
    """The way a user goes: from_pretrained by name, prepare, generate."""
    import transformers

    plain = tiny.model_of("Qwen3Moe", seed, num_hidden_layers=1)
    plain.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, experts_implementation=ours.NAME)
    assert_same_tokens(ours.prepare(loaded), tiny.dequantised(plain), prompts(16), least=25)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_layers_experts_against_fp64(family, seed):
    experts, (x, ids, weights) = layer_of(tiny.model_of(family, seed, experts=ours.NAME)), routed()
    exact = moe(x, quantize_layer(experts.gate_up_proj, experts.down_proj), ids, weights)
    got = experts(x, ids, weights)
    assert got.dtype is torch.bfloat16 and got.shape == x.shape and relative(got, exact) < EXPERTS
    assert relative(experts(x, ids, weights.bfloat16()), exact) < 2 * EXPERTS, "routers may hand over BF16 weights"
    assert experts(x[:0], ids[:0], weights[:0]).shape == (0, tiny.HIDDEN)


def test_a_model_that_was_not_prepared_is_packed_as_it_runs(seed):
    lazy = tiny.model_of("Qwen3Moe", seed, experts=ours.NAME)
    eager, ids = ours.prepare(copy.deepcopy(lazy)), prompts()
    assert torch.equal(lazy(ids).logits, eager(ids).logits)
    assert not any(hasattr(module, "gate_up_proj") for module in tiny.experts_of(lazy).values())


# -- memory -------------------------------------------------------------------------------------------------------------
def test_bf16_experts_are_given_back_layer_by_layer(seed, monkeypatch):
    model = tiny.model_of("Qwen3Moe", seed, experts=ours.NAME)
    held = [weakref.ref(weight) for module in tiny.experts_of(model).values() for weight in (module.gate_up_proj, module.down_proj)]
    alive = []

    def spied(gate_up, down):
        alive.append(sum(reference() is not None for reference in held))
        return quantize_layer(gate_up, down)

    monkeypatch.setattr(ours, "quantize_layer", spied)
    ours.prepare(model)
    alive.append(sum(reference() is not None for reference in held))
    assert alive == [4, 2, 0]


def test_preparing_twice_packs_once(seed, monkeypatch):
    model = ours.prepare(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME))
    monkeypatch.setattr(ours, "quantize_layer", lambda *_: pytest.fail("packed again"))
    assert ours.prepare(model) is model


# -- registration -------------------------------------------------------------------------------------------------------
def test_registering_again_changes_nothing_and_starts_no_cuda():
    script = """
import sys, torch
from chord_jit.integrations import transformers as ours
assert "transformers" not in sys.modules
ours.register(); ours.register()
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
assert ALL_EXPERTS_FUNCTIONS["chord_jit"] is ours.experts_forward
assert [name for name in ALL_EXPERTS_FUNCTIONS.valid_keys() if "chord" in name] == ["chord_jit"]
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# -- refusals -----------------------------------------------------------------------------------------------------------
def changed(model, number=1, **attributes):
    """``model`` with attributes of one layer's experts changed."""
    module = list(tiny.experts_of(model).values())[number]
    for name, value in attributes.items():
        setattr(module, name, value)
    return model


def biased(model):
    return changed(model, has_bias=True)


def with_nan(model):
    layer_of(model).down_proj[2, 3, 4] = float("nan")
    return model


def configured(model, **others):
    return changed(model, config=SimpleNamespace(_experts_implementation=ours.NAME, **others))


def on_meta(model):
    module = layer_of(model)
    module.down_proj = torch.nn.Parameter(module.down_proj.to("meta"))
    return model


def gated(model):
    module = layer_of(model)
    module.__class__ = type("OtherExperts", (type(module),), {"_apply_gate": lambda self, both: both})
    return model


REFUSED = {
    "another implementation": ("experts_implementation=eager", model_on_eager),
    "no MoE": ("must have MoE layers", lambda m: torch.nn.Linear(2, 2)),
    "float32": ("model.layers.0.mlp.experts\n.*\n.*gate_up_proj=torch.float32", lambda m: m.float()),
    "biases": ("model.layers.1.mlp.experts\n.*\n.*experts=with biases", biased),
    "transposed, without a gate": ("without a gate; transposed", lambda m: changed(m, has_gate=False, is_transposed=True)),
    "interleaved": ("gate and up interleaved", lambda m: changed(m, is_concatenated=False)),
    "expert parallel": ("this rank has a share", lambda m: changed(m, _is_expert_parallel=True)),
    "a norm": ("a norm behind", lambda m: changed(m, has_post_expert_norm=True)),
    "activation": ("another activation than SiLU", lambda m: changed(m, act_fn=torch.nn.GELU())),
    "gate": ("model.layers.0.mlp.experts\n.*\n.*a gate of their own", gated),
    "no experts a token": ("no number num_experts_per_tok", configured),
    "experts a token by layer": ("no number num_experts_per_tok", lambda m: configured(m, num_experts_per_tok=[2, 2])),
    "offloaded": ("device=meta", on_meta),
    "NaN": ("model.layers.0.mlp.experts\n.*must be finite", with_nan),
}


@pytest.mark.parametrize("says, spoil", REFUSED.values(), ids=REFUSED)
def test_prepare_refuses_and_names_the_module(seed, says, spoil):
    model = spoil(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME))
    with pytest.raises(InputError, match=says) as caught:
        ours.prepare(model)
    assert caught.value.remedy
    assert all(hasattr(module, "gate_up_proj") for module in tiny.experts_of(model).values()), "nothing was packed"


@pytest.mark.parametrize("changes", [dict(moe_intermediate_size=40), dict(hidden_size=80, head_dim=20)], ids=["neurons", "hidden"])
def test_sizes_that_do_not_fit_name_the_module(seed, changes):
    model = tiny.model_of("Qwen3Moe", seed, experts=ours.NAME, **changes)
    with pytest.raises(InputError, match="pack the experts of model.layers.0.mlp.experts\n.*multiples of 32"):
        ours.prepare(model)
    with pytest.raises(InputError, match="pack the experts of Qwen3MoeExperts\n.*multiples of 32"):
        model(prompts())


def test_a_gradient_is_refused(seed):
    model = ours.prepare(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME))
    with torch.enable_grad(), pytest.raises(InputError, match="packed experts have no gradient"):
        model(prompts())


def test_a_first_call_that_is_compiled_whole_is_refused(seed, fresh_compiler):
    experts, call = layer_of(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME)), routed()
    with pytest.raises(Exception, match=r"transformers.prepare\(model\) before compiling"):
        torch.compile(experts, fullgraph=True, backend="aot_eager")(*call)
    assert torch.equal(torch.compile(experts, backend="aot_eager")(*call), experts(*call)), "in parts it is packed in between"


def test_a_prepared_model_compiles_whole(seed, fresh_compiler):
    model, ids = ours.prepare(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME)), prompts()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(ids).logits, model(ids).logits)


def test_a_first_call_within_a_capture_is_refused(seed, monkeypatch):
    """Where a GPU would say that its stream is being captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    experts, x = layer_of(tiny.model_of("Qwen3Moe", seed, experts=ours.NAME)), SimpleNamespace(is_cuda=True, requires_grad=False)
    with pytest.raises(CaptureError, match="pack the experts of Qwen3MoeExperts\n.*cannot be captured"):
        experts(x, *routed()[1:])
