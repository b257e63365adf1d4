"""Tiny random MoE models of transformers in BF16, and a copy whose experts hold what INT4 makes of their weights."""

from __future__ import annotations

import copy

import torch

from chord_jit.formats.quantize import quantize_w4a16

TOP_K, EXPERTS, HIDDEN, NEURONS, VOCABULARY = 2, 6, 64, 96, 16
#: Families of models: the name of transformers' configuration and its sizes, which tell how many layers are MoE ones: two by default.
FAMILIES = {
    "Qwen3Moe": dict(head_dim=16, num_experts=EXPERTS, moe_intermediate_size=NEURONS, decoder_sparse_step=1),
    "Mixtral": dict(head_dim=16, num_local_experts=EXPERTS),
    "DeepseekV3": dict(
        n_routed_experts=EXPERTS, moe_intermediate_size=NEURONS, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=0,
        q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4,
    ),
}  # fmt: skip
_COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=NEURONS, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, num_experts_per_tok=TOP_K, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3,
    bos_token_id=1, eos_token_id=None, pad_token_id=0,
)  # fmt: skip


def model_of(family: str, seed: int, *, experts: str = "eager", **changes) -> torch.nn.Module:
    """A BF16 model in evaluation mode, its weights drawn from ``seed``; ``changes`` to its configuration."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**_COMMON, **FAMILIES[family], **changes})
    config._experts_implementation = experts
    return getattr(transformers, f"{family}ForCausalLM")(config).bfloat16().eval()


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
