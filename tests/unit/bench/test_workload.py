"""Fresh values: what the peer and our packing are given is one weight, and every code occurs."""

from __future__ import annotations

import pytest
import torch

from chord_jit.bench import check, workload
from chord_jit.bench.cases import CASES, SMOKE, Case, Draw, Layer
from chord_jit.formats.w4a16 import unpack_w4a16

DOWN = Layer("down", 16, 256, 512, False, True, "test")


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


def codes_of(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & 15).flatten(-2).to(torch.uint8)


def test_every_packing_holds_the_same_weight(generator):
    weights = workload.weights(SMOKE, generator)
    codes = codes_of(weights.words)
    assert codes.shape == (SMOKE.experts, SMOKE.n, SMOKE.k)
    assert codes.unique().tolist() == list(range(16))
    assert weights.plain.interleaved is False and weights.fused.interleaved is True
    for packed in (weights.plain, weights.fused):
        unpacked, scale = unpack_w4a16(packed)
        assert torch.equal(unpacked, codes) and torch.equal(scale, weights.scale)
        assert packed.data[0].numel() == SMOKE.expert_bytes


def test_values_are_drawn_fresh(generator):
    first, second = workload.weights(DOWN, generator), workload.weights(DOWN, generator)
    assert first.fused is None
    assert not torch.equal(first.words, second.words) and not torch.equal(first.scale, second.scale)


def test_gate_up_reads_tokens_and_down_reads_routed_rows(generator):
    case = CASES["smoke"][0]
    inputs = workload.inputs(case, generator)
    assert inputs.x.shape == (4, SMOKE.k) and inputs.topk_ids.shape == (4, 8)
    down = workload.inputs(Case(DOWN, case.draw), generator)
    assert down.x.shape == (32, DOWN.k) and down.topk_ids.shape == (32, 1)
    assert down.topk_ids.flatten().tolist() == inputs.topk_ids.flatten().tolist()
    assert len(inputs.active) == case.draw.active and down.active == inputs.active


def test_the_exact_result_is_the_plain_formula(generator):
    draw = Draw(2, 16, seed=1, active=0, busiest=0, picks=3)
    weights, inputs = workload.weights(DOWN, generator), workload.inputs(Case(DOWN, draw), generator)
    values = (codes_of(weights.words).double() - 8) * weights.scale.double().repeat_interleave(32, dim=-1)
    wanted = torch.stack([values[expert] @ row for expert, row in zip(inputs.topk_ids[:, 0].tolist(), inputs.x.double(), strict=True)])
    torch.testing.assert_close(check.exact(weights.plain, inputs, swiglu=False), wanted, rtol=1e-12, atol=1e-14)
    outputs = wanted.to(torch.bfloat16)
    assert 1e-4 < check.relative_l2(outputs, wanted) < 4e-3


def test_an_unwritten_output_is_an_infinite_error(generator):
    inputs = workload.inputs(CASES["smoke"][0], generator)
    out = inputs.empty_output(8)
    wanted = torch.ones(out.shape, dtype=torch.float64)
    assert check.relative_l2(out, wanted) == float("inf")
    out.fill_(1.0)
    assert check.relative_l2(out, wanted) == 0.0
    out[3, 5] = float("nan")
    assert check.relative_l2(out, wanted) == float("inf")
