"""transformers' generate() over the kernels, and the memory that packing a model takes."""

from __future__ import annotations

import pytest
import torch

from chord_jit.integrations import transformers as ours
from tests.unit.integrations import tiny_models as tiny
from tests.unit.integrations.agreement import assert_same_tokens, relative

pytest.importorskip("transformers")
#: Of logits, against the loop of transformers over BF16 experts.
LOGITS = 2e-2


@pytest.fixture(autouse=True)
def inference():
    ours.register()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_generate_gives_the_tokens_of_the_dequantised_weights(family, gpu, seed):
    """One MoE layer, whose router sees the same bits in both models."""
    sizes = dict(first_k_dense_replace=1) if family == "DeepseekV3" else dict(num_hidden_layers=1)
    model = tiny.model_of(family, seed, experts=ours.NAME, **sizes).to(gpu)
    want, ids = tiny.dequantised(model), torch.randint(2, tiny.VOCABULARY, (16, 12), device=gpu)
    ours.prepare(model)
    assert relative(model(ids).logits, want(ids).logits) < LOGITS
    assert_same_tokens(model, want, ids, least=25)


def test_a_model_prepared_on_the_cpu_may_be_moved(gpu, seed):
    model = tiny.model_of("Qwen3Moe", seed, experts=ours.NAME, num_hidden_layers=1)
    want, ids = tiny.dequantised(model).to(gpu), torch.randint(2, tiny.VOCABULARY, (4, 12), device=gpu)
    assert relative(ours.prepare(model).to(gpu)(ids).logits, want(ids).logits) < LOGITS


def test_packing_holds_one_layer_and_one_expert_more(gpu, seed):
    """Layers of 16 experts with 1.6 M weights each: the peak lies above the BF16 model by less than a packed layer and three experts."""
    sizes = dict(hidden_size=512, moe_intermediate_size=1024, num_experts=16, num_hidden_layers=3)
    model = tiny.model_of("Qwen3Moe", seed, experts=ours.NAME, **sizes).to(gpu)
    one = next(iter(tiny.experts_of(model).values()))
    layer = one.gate_up_proj.numel() + one.down_proj.numel()
    del one
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    ours.prepare(model)
    peak, after = torch.cuda.max_memory_allocated(gpu) - before, before - torch.cuda.memory_allocated(gpu)
    assert peak < 0.5625 * layer + 3 * 2 * layer / 16
    assert after == pytest.approx(3 * (2 - 0.5625) * layer, rel=0.02)
