"""A rank's layer straight from a checkpoint: all ranks together are the whole layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import chord_jit
from chord_jit.errors import InputError
from chord_jit.formats.checkpoint import load_moe_layers
from chord_jit.reference.moe import moe
from tests.unit.formats import tiny_layers as tiny

EXPERTS, HIDDEN, NEURONS, TOP_K, TOKENS = 4, 64, 128, 2, 9
pytestmark = pytest.mark.usefixtures("reference_backend")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.write(folder, 77, [1, 2], tiny.config(2, EXPERTS, HIDDEN, NEURONS))
    return folder


@pytest.mark.parametrize(("ep", "tp"), [(1, 1), (4, 1), (1, 4), (2, 2)])
def test_the_ranks_add_up_to_the_layer(model, ep, tp, seed):
    """Every rank is handed the model's ids; the shared expert is one rank's alone."""
    ids = torch.rand(TOKENS, EXPERTS).argsort(1)[:, :TOP_K].contiguous()
    # Routing weights that make the experts' sum as large as x, the shared result.
    x, factors = torch.randn(TOKENS, HIDDEN).bfloat16(), torch.rand(TOKENS, TOP_K) / 10_000
    total = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for rank in range(ep * tp):
        shared = torch.nn.Identity() if rank == 0 else None
        layer = chord_jit.MoELayer.from_checkpoint(model, 2, ep=ep, tp=tp, rank=rank, device="cpu", shared=shared)
        assert (layer.weights.gate_up.experts, layer.weights.down.k, layer.top_k) == (EXPERTS // ep, NEURONS // tp, TOP_K)
        total += layer(x, ids, factors).double()
    exact = moe(x, load_moe_layers(model, layers=[2])[2], ids, factors, shared=x)
    assert float((total - exact).norm() / exact.norm()) < 6e-3


def test_what_the_checkpoint_refuses_is_refused(model):
    for wrong in ({"layer": 0}, {"layer": 1, "ep": 3}, {"layer": 1, "tp": 2, "rank": 2}):
        with pytest.raises(InputError) as caught:
            chord_jit.MoELayer.from_checkpoint(model, device="cpu", **wrong)
        assert caught.value.remedy
