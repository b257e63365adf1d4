"""What the peer's package is asked, with a stand-in that answers as humming-kernels 0.1.20 does and keeps what it was given."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from chord_jit.bench import peers
from chord_jit.bench.layers import Layer

LAYER = Layer("tiny", 4, 128, 256, True, False, "test")
SMALL = {"block_shape": (16, 256, 64), "mma_type": "wgmma", "num_stages": 4}
LARGE = {"block_shape": (128, 256, 64), "mma_type": "wgmma", "num_stages": 3, "num_ctas_per_sm": 2, "use_stream_k": True}


@pytest.fixture
def package(monkeypatch):
    """Installs the stand-in; returns what it was called with."""
    seen = SimpleNamespace(heuristics=[], compiled=[], launched=[], processed=[])

    class Method:
        @staticmethod
        def prepare_layer_meta(module, **facts):
            seen.layer = facts
            module.humming_metas = {"": SimpleNamespace(to_str=lambda: "meta")}

        @staticmethod
        def transform_humming_layer(module):
            seen.names = sorted(dict(module.named_parameters()))

    class Kernel:
        @staticmethod
        def prepare_kernels(layer, compute, tunings):
            tunings = json.loads(tunings)
            seen.compiled.append((layer, json.loads(compute), tunings))
            return torch.tensor([[low, high, 100 + index, 0] for index, (low, high, _) in enumerate(tunings)]).view(-1)

    def heuristics(meta, shape_m=None, gemm_type="dense"):
        seen.heuristics.append((shape_m, gemm_type))
        if shape_m is not None:
            return dict(LARGE, num_sms=96)
        return [[0, 8, dict(SMALL, num_sms=8)], [8, 16, dict(SMALL, num_sms=16)], [16, 1 << 30, dict(LARGE)]]

    modules = {
        "humming": {}, "humming.layer": {"HummingLayerMethod": Method}, "humming.schema": {"HummingWeightSchema": SimpleNamespace},
        "humming.tune": {"get_heuristics_config": heuristics}, "humming.kernel": {}, "humming.kernel.humming": {"HummingKernel": Kernel},
        "humming.ops": {"launch_kernel": lambda **named: seen.launched.append(named)},
        "humming.forward": {"may_process_input": lambda *parts, **named: seen.processed.append((parts, named))},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return seen


@pytest.fixture
def copy(package):
    words = torch.zeros(4, 128, 32, dtype=torch.int32)
    return peers.Humming(LAYER, words, torch.ones(4, 128, 8, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("layout", "gemm_type"), [("indexed", "indexed"), ("masked", "grouped_masked"), ("offsets", "grouped_contiguous")]
)
def test_the_kind_of_gemm_follows_the_layout(layout, gemm_type, copy, package):
    default = copy.default(layout, 96)
    assert package.heuristics == [(96, gemm_type)] and package.compiled[0][1] == {"gemm_type": gemm_type}
    assert package.compiled[0][2][0][2]["num_sms"] == 96 and default.block_m == 128
    pool = copy.own_configurations(layout)
    assert package.heuristics[1] == (None, gemm_type) and package.compiled[1][1] == {"gemm_type": gemm_type}
    assert [one.tuning for one in pool] == [SMALL, LARGE], "entries that differ in the grid alone are one configuration"
    assert [one.handle.tolist() for one in pool] == [[0, 1 << 30, 100, 0], [0, 1 << 30, 101, 0]]
    assert str(pool[1]) == "128x256x64 wgmma s3 ctas2 use_stream_k"


def test_the_layer_is_int4_with_scales_of_groups(copy, package):
    assert package.names == ["weight", "weight_scale"]
    schema = package.layer.pop("weight_schema")
    assert vars(schema) == {"b_dtype": "uint4", "bs_dtype": "bfloat16", "weight_scale_group_size": 32}
    assert package.layer == {"shape_n": 128, "shape_k": 256, "num_experts": 4, "torch_dtype": torch.bfloat16}


def test_a_call_hands_the_rows_over_as_they_are(copy, package):
    x, out = torch.zeros(4, 256), torch.zeros(4, 128)
    rows = {"expert_layout": torch.tensor([1, 1, 1, 1], dtype=torch.int32), "valid_shape_m": 4}
    configuration = copy.default("masked", 4)
    copy.call(configuration, x, out, rows)()
    (named,) = package.launched
    assert set(named) == {"configs", "inputs", "weight", "weight_scale", "outputs", "locks", "expert_layout", "valid_shape_m"}
    assert named["inputs"] is x and named["outputs"] is out and named["expert_layout"] is rows["expert_layout"]
    assert named["configs"] is configuration.handle and named["locks"].dtype is torch.int32 and not named["locks"].any()


def test_what_goes_into_a_layer_is_processed_for_that_layer(copy, package):
    x, out = torch.zeros(4, 256), torch.zeros(4, 128)
    copy.process(x, out, layout="normal", activation_type="binary_split")
    ((parts, named),) = package.processed
    assert parts[0].to_str() == "meta" and parts[1] is x
    assert named == {"outputs": out, "layout": "normal", "activation_type": "binary_split"}
