"""One rank's layer of each served model: gate/up with SwiGLU, then down with routing weights, by whatever the resolver takes."""

import pytest

from chord_jit.schedules.deployment import Deployment
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.workload import build

KIMI, DEEPSEEK, QWEN_30B, QWEN_235B = (7168, 2048, 384, 8), (7168, 2048, 256, 8), (2048, 768, 128, 8), (4096, 1536, 128, 8)
#: Layer, ranks, rows per expert and block size. EP8 and TP8 of Kimi K2 are cases of other tests.
RANKS = [
    ("Kimi K2", KIMI, dict(ep=16), 150, 128),
    ("Kimi K2", KIMI, dict(ep=32), 40, 64),
    ("Kimi K2", KIMI, dict(tp=16), 20, 32),
    ("DeepSeek-V3", DEEPSEEK, dict(ep=8), 60, 64),
    ("DeepSeek-V3", DEEPSEEK, dict(ep=16), 3, 16),
    ("DeepSeek-V3", DEEPSEEK, dict(tp=8), 30, 48),
    ("Qwen3-30B", QWEN_30B, dict(ep=8), 250, 192),
    ("Qwen3-30B", QWEN_30B, dict(tp=8), 40, 64),
    ("Qwen3-235B", QWEN_235B, dict(ep=8), 90, 96),
    ("Qwen3-235B", QWEN_235B, dict(ep=16), 5, 8),
    ("Qwen3-235B", QWEN_235B, dict(tp=16), 70, 64),
]


def cases_of(layer: tuple, ranks: dict, rows: int, block_m: int) -> tuple[Case, Case]:
    """gate/up and down of one rank, each expert with about ``rows`` rows."""
    model = Deployment(*layer, **ranks)
    tokens = rows * model.local_experts // model.top_k
    gate_up = Case(model.local_experts, *model.gate_up, tokens, model.top_k, block_m, **PAIRS)
    return gate_up, Case(model.local_experts, *model.down, tokens * model.top_k, 1, block_m, weighted=True)


CALLS = {
    f"{name} {' '.join(f'{how}{count}' for how, count in ranks.items())} {projection} b{block_m}".replace(" ", "-"): case
    for name, layer, ranks, rows, block_m in RANKS
    for projection, case in zip(("gate-up", "down"), cases_of(layer, ranks, rows, block_m), strict=True)
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_v47_v50_values(case, gpu, seed):
    work = build(case, gpu, seed)
    assert_right(work.fenced_call(), work)
