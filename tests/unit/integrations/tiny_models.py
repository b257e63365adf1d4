"""Tiny random MoE models of transformers in BF16, and a copy whose experts hold what INT4 makes of their weights."""

from __future__ import annotations

import copy

import torch

from chord_jit.formats.quantize import quantize_w4a16

#: Families of models, by the configuration and the class of transformers.
FAMILIES = {"qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"), "mixtral": ("MixtralConfig", "MixtralForCausalLM")}
TOP_K, EXPERTS, HIDDEN, NEURONS, VOCABULARY = 2, 6, 64, 96, 16


def config_of(family: str, **changes):
    """A configuration of two layers, all of them MoE."""
    import transformers

    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        num_experts_per_tok=TOP_K, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3, bos_token_id=1,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    sizes |= {
        "qwen3_moe": dict(num_experts=EXPERTS, moe_intermediate_size=NEURONS, intermediate_size=NEURONS, decoder_sparse_step=1),
        "mixtral": dict(num_local_experts=EXPERTS, intermediate_size=NEURONS),
    }[family]
    return getattr(transformers, FAMILIES[family][0])(**{**sizes, **changes})


def model_of(family: str, seed: int, *, experts: str = "eager", dtype: torch.dtype = torch.bfloat16, **changes) -> torch.nn.Module:
    """A model of ``config_of`` in evaluation mode, its weights drawn from ``seed``."""
    import transformers

    torch.manual_seed(seed)
    config = config_of(family, **changes)
    config._experts_implementation = experts
    return getattr(transformers, FAMILIES[family][1])(config).to(dtype).eval()


def experts_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: module for name, module in model.named_modules() if name.endswith("mlp.experts")}


@torch.no_grad()
def dequantised(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of ``model`` on transformers' own loop over experts, their weights (code - 8) * scale rounded to BF16."""
    rounded = copy.deepcopy(model)
    rounded.set_experts_implementation("eager")
    for module in experts_of(rounded).values():
        for weight in (module.gate_up_proj, module.down_proj):
            codes, scale = quantize_w4a16(weight)
            weight.copy_((codes.float() - 8) * scale.float().repeat_interleave(32, -1))
    return rounded
