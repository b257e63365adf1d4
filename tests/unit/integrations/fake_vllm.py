"""A small vLLM with a Humming of its own: the names that the plugin reads, and a record of what reached the original functions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch

DTYPES = SimpleNamespace(uint4="uint4", bfloat16="bfloat16", float8e4m3="float8e4m3")


@dataclass(kw_only=True)
class BaseWeightSchema:
    quant_method: str = ""

    @classmethod
    def from_config(cls, config: dict) -> BaseWeightSchema:
        assert cls is BaseWeightSchema, "Humming looks a schema up by its own base class alone"
        kind = CompressedTensorsWeightSchema if config["quant_method"] == "compressed-tensors" else HummingWeightSchema
        return kind(**config)


@dataclass(kw_only=True)
class HummingWeightSchema(BaseWeightSchema):
    b_dtype: str = "uint4"
    bs_dtype: str | None = None
    weight_scale_group_size: int = 0
    weight_scale_type: str = "group"
    hadamard_block_size: int = 0


@dataclass(kw_only=True)
class CompressedTensorsWeightSchema(BaseWeightSchema):
    format: str = "pack-quantized"
    type: str = "int"
    num_bits: int = 4
    strategy: str = "group"
    group_size: int = 32
    symmetric: bool = True
    actorder: str | None = None

    def __post_init__(self) -> None:
        self.weight_key = "weight_packed"

    def convert_humming(self, tensors, shape_n_stacks, shape_k_stacks, param_dtype, num_experts=None, **options):
        return HummingWeightSchema(b_dtype="float4e0m3"), {"weight": "re-encoded"}


@dataclass(kw_only=True, unsafe_hash=True)
class LayerConfig:
    shape_n: int
    shape_k: int
    pad_shape_n: int = 0
    pad_shape_k: int = 0
    num_experts: int = 0
    b_dtype: str
    a_dtype: str
    c_dtype: str
    bs_dtype: str | None = None
    sm_version: int | None = None
    input_quant_mode: str | None = None
    weight_scale_group_size: int = 0
    weight_scale_type: str | None = None

    def __post_init__(self) -> None:
        raise AssertionError("Humming asks its device here")


@dataclass
class Input:
    a_dtype: str | None = None


class Facade(ModuleType):
    """``vllm.utils.humming``. ``resolved``: names that were asked of Humming; ``reached``: calls that got to its functions."""

    def __init__(self, *, without: tuple[str, ...] = (), older: bool = False) -> None:
        super().__init__("vllm.utils.humming")
        self.resolved, self.reached = [], []

        def prepare(
            tensors, shape_n, shape_k, weight_schema, input_schema=None, num_experts=None, pad_n_to_multiple=1, pad_k_to_multiple=1,
            has_bias=False, torch_dtype=None, device=None,
        ):  # fmt: skip
            self.reached.append(("prepare", shape_n, shape_k))
            return "upstream"

        def prepare_layer_config(shape_n, shape_k, weight_schema, input_schema=None, num_experts=None, has_bias=False, torch_dtype=None):
            self.reached.append(("prepare", shape_n, shape_k))
            return "upstream"

        def call(name):
            def function(config=None, *args, layer_config=None, **options):
                self.reached.append((name, config or layer_config))
                return "upstream"

            return function

        kinds = (BaseWeightSchema, HummingWeightSchema, CompressedTensorsWeightSchema, LayerConfig)
        names = {kind.__name__: kind for kind in kinds} | {"dtypes": DTYPES, "InputQuantizationMode": SimpleNamespace(Disabled="none")}
        names |= {name: call(name) for name in ("humming_forward", "may_process_input", "get_heuristics_config")}
        if older:
            del names["may_process_input"]
            names |= {name: call(name) for name in ("may_quant_input", "transform_humming_tensors")}
            names["prepare_layer_config"] = prepare_layer_config
        else:
            names["prepare_and_transform_humming_tensors"] = prepare
        self._EXPORTS = {name: "humming" for name in names if name not in without}

        def resolve(name: str) -> object:
            if name not in self._EXPORTS:
                raise AttributeError(name)
            self.resolved.append(name)
            setattr(self, name, names[name])
            return names[name]

        self.__getattr__ = resolve


def install(monkeypatch, facade: Facade, version: str = "0.33.0") -> Facade:
    """Makes ``facade`` the one of a vLLM of this version, for one test."""
    vllm, utils = ModuleType("vllm"), ModuleType("vllm.utils")
    vllm.__version__, vllm.envs = version, SimpleNamespace(VLLM_BATCH_INVARIANT=False)
    vllm.__path__ = utils.__path__ = []
    for name, module in {"vllm": vllm, "vllm.utils": utils, "vllm.utils.humming": facade}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return facade


def source(facade: Facade, **changes: object) -> object:
    """The schema of a checkpoint as the facade makes it."""
    return facade.BaseWeightSchema.from_config({"quant_method": "compressed-tensors", **changes})


def converted(facade: Facade, experts: int = 2, n: int = 128, k: int = 64, gated: bool = True) -> tuple[object, dict[str, torch.Tensor]]:
    """Codes and scales on their way through our schema."""
    tensors = {
        "weight_packed": torch.randint(-(2**31), 2**31, (experts, n, k // 8)).int(),
        "weight_scale": torch.rand(experts, n, k // 32).bfloat16(),
    }
    stacks = [n // 2, n // 2] if gated else [n]
    return source(facade).convert_humming(tensors, stacks, [k], torch.bfloat16, experts)


def prepared(facade: Facade, **changes: object) -> object:
    """What the overlaid preparation answers for a layer that we serve, but for ``changes``."""
    schema, tensors = converted(facade)
    asked = {
        "tensors": tensors, "shape_n": 128, "shape_k": 64, "weight_schema": schema, "input_schema": Input(), "num_experts": 2,
        "pad_n_to_multiple": 256, "pad_k_to_multiple": 128, "torch_dtype": torch.bfloat16, "device": torch.device("cpu"), **changes,
    }  # fmt: skip
    return facade.prepare_and_transform_humming_tensors(**asked)
