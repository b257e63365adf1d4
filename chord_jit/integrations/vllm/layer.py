"""A MoE projection that we serve: the rules that it must keep, its config, its packed weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch

from chord_jit.api import pack_w4a16
from chord_jit.device import DeviceFacts
from chord_jit.formats.w4a16 import GROUP, PackedW4A16
from chord_jit.integrations.vllm import place, schema


class ServedLayer:
    """What marks a ``LayerConfig`` as ours; vLLM reads the shapes and dtypes of the class beside it.

    ``gated``: rows are gates, then ups (w13), else w2. ``index``: CUDA device, -1 the CPU. ``sizes``: by GEMM type (``sizes``).
    """

    shape_n: int
    shape_k: int
    num_experts: int
    gated: bool
    index: int
    sizes: dict[str, object]

    def __post_init__(self) -> None:
        """Humming's own would ask its device for layouts that we do not use."""

    @property
    def facts(self) -> DeviceFacts:
        """Of the GPU that holds the layer."""
        return place.facts_of(self.index)

    def packed(self, weight: torch.Tensor) -> PackedW4A16:
        """The parameter that vLLM passes, as what our calls take. Made per call: vLLM may put other bytes under the same name."""
        return PackedW4A16(weight, self.shape_n, self.shape_k, self.num_experts, False)


@dataclass(frozen=True)
class Asked:
    """One projection, as vLLM asks Humming to prepare it."""

    n: int
    k: int
    experts: int
    weight_schema: object
    input_schema: object
    has_bias: bool
    dtype: torch.dtype | None
    device: object
    tensors: Mapping[str, torch.Tensor] | None

    @classmethod
    def of(cls, arguments: Mapping[str, object]) -> Asked:
        """From the arguments of ``prepare_and_transform_humming_tensors`` or ``prepare_layer_config``."""
        return cls(
            arguments["shape_n"], arguments["shape_k"], arguments.get("num_experts") or 0, arguments["weight_schema"],
            arguments.get("input_schema"), bool(arguments.get("has_bias")), arguments.get("torch_dtype"), arguments.get("device"),
            arguments.get("tensors"),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"MoE layers with {self.experts} experts, N {self.n}, K {self.k}" if self.experts else "dense layers"


def why_not(facade: ModuleType, asked: Asked) -> str | None:
    """The first rule that the layer breaks, in words; None for one that we serve. Rules are of shapes, dtypes and settings, never
    of values, so that all ranks decide alike. What ``schema`` leaves to Humming comes before the schema that this left behind.
    """
    from vllm import envs

    activations = getattr(asked.input_schema, "a_dtype", None)
    plain = asked.dtype is torch.bfloat16 and activations in (None, facade.dtypes.bfloat16)
    other = None if plain else asked.dtype if activations is None else activations
    unserved = schema.objection(asked.experts, other, asked.has_bias, asked.device)
    if unserved is not None:
        return unserved
    if not schema.is_codes(facade, asked.weight_schema):
        return f"weights are {_kind(asked.weight_schema)}, not compressed-tensors INT4 in symmetric groups of 32"
    extra = sorted(set(asked.tensors or ()) - {"weight", "weight_scale"})
    if extra:
        return f"it has {', '.join(extra)}"
    if asked.weight_schema.hadamard_block_size > 1:
        return "its inputs want a Hadamard transform"
    if asked.n % 8 or asked.k % GROUP:
        return f"N must be a multiple of 8 and K of {GROUP}"
    if getattr(envs, "VLLM_BATCH_INVARIANT", False):
        return "VLLM_BATCH_INVARIANT is set, and schedules depend on the batch"
    return None


def prepare(facade: ModuleType, asked: Asked) -> ServedLayer:
    """The layer's config: a ``LayerConfig`` without padding, since our packing pads by itself."""
    kind, dtypes, index = config_class(facade.LayerConfig), facade.dtypes, place.index_of(asked.device)
    facts = place.facts_of(index)
    given = {
        "sm_version": int("".join(filter(str.isdigit, facts.arch))), "shape_n": asked.n, "shape_k": asked.k,
        "num_experts": asked.experts, "b_dtype": dtypes.uint4, "a_dtype": dtypes.bfloat16, "c_dtype": dtypes.bfloat16,
        "bs_dtype": dtypes.bfloat16, "weight_scale_group_size": GROUP, "weight_scale_type": asked.weight_schema.weight_scale_type,
    }  # fmt: skip
    known = {field.name for field in dataclasses.fields(kind)}
    if "input_quant_mode" in known:
        given["input_quant_mode"] = facade.InputQuantizationMode.Disabled
    config = kind(**{name: value for name, value in given.items() if name in known})
    config.gated, config.index, config.sizes = asked.weight_schema.gated, index, {}
    return config


def pack(config: ServedLayer, tensors: Mapping[str, torch.Tensor], **options: object) -> dict[str, torch.Tensor]:
    """Codes int32 [E, N, K / 8] and BF16 scales [E, N, K / 32] to our bytes, scales among them: uint8 [E, panels, kblocks, 4608].

    Scratch is a few MiB beyond source and result. Raises ``InputError`` for scales that are not finite.
    """
    return {"weight": pack_w4a16(tensors["weight"], tensors["weight_scale"]).data}


def prepare_and_pack(facade: ModuleType, asked: Asked) -> tuple[ServedLayer, dict[str, torch.Tensor]]:
    """Both, as vLLM asks since 0.32."""
    config = prepare(facade, asked)
    return config, pack(config, asked.tensors)


@lru_cache(maxsize=None)
def config_class(upstream: type) -> type:
    """``LayerConfig`` that is ours, by inheritance: no other state says so."""
    return type("ChordLayerConfig", (ServedLayer, upstream), {})


def _kind(weight_schema: object) -> str:
    return f"{getattr(weight_schema, 'b_dtype', type(weight_schema).__name__)} converted by Humming"
