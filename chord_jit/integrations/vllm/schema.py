"""Weights of a checkpoint on their way to ``layer.pack``: Humming's own classes, told to leave the INT4 codes as they are.

Humming re-encodes INT4 codes when their values allow it, with temporaries of 16 bytes a weight. Our schema does not: its codes stay
plain uint4 [E, N, K / 8], which Humming takes too, should ``layer.why_not`` find a reason against us later.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import torch

from chord_jit.formats.w4a16 import GROUP
from chord_jit.integrations.vllm import place


class Classes(NamedTuple):
    """``source``: of a checkpoint we can serve. ``codes``: of the tensors that it converts to; ``gated``: gate and up rows together."""

    source: type
    codes: type


def base_schema(facade: ModuleType, upstream: type) -> type:
    """``BaseWeightSchema`` whose ``from_config`` gives our source schema for INT4 in groups of 32."""

    class BaseWeightSchema(upstream):
        @classmethod
        def from_config(cls, config: dict) -> object:
            found = upstream.from_config(config)
            if type(found) is not facade.CompressedTensorsWeightSchema or not _is_int4_group32(found):
                return found
            given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found) if field.init}
            return classes(facade).source(**given)

    return BaseWeightSchema


def objection(experts: int | None, activations: object, has_bias: bool, where: torch.device | str | int | None) -> str | None:
    """Why a layer stays with Humming whatever its weights are, in words; None where they decide. ``activations``: None for BF16."""
    if not experts:
        return "no experts"
    if activations is not None:
        return f"activations are {activations}, not BF16"
    return "it has bias" if has_bias else place.objection(where)


def is_codes(facade: ModuleType, schema: object) -> bool:
    """Whether ``schema`` came from our conversion."""
    return isinstance(schema, classes(facade).codes)


@lru_cache(maxsize=None)
def classes(facade: ModuleType) -> Classes:
    """Our two schemas over Humming's, made when the first is needed."""

    @dataclasses.dataclass(kw_only=True)
    class CodesSchema(facade.HummingWeightSchema):
        gated: bool = False

    @dataclasses.dataclass(kw_only=True)
    class SourceSchema(facade.CompressedTensorsWeightSchema):
        def convert_humming(
            self, tensors: dict[str, torch.Tensor], shape_n_stacks: list[int], shape_k_stacks: list[int], param_dtype: torch.dtype,
            num_experts: int | None = None, **options: object,
        ) -> tuple[object, dict[str, torch.Tensor]]:
            """Codes int32 [E, N, K / 8] as the checkpoint has them and BF16 scales: views where dtypes agree, no temporaries."""
            weight = tensors[self.weight_key]
            other = None if param_dtype is torch.bfloat16 else param_dtype
            if objection(num_experts, other, "bias" in tensors, weight.device) is not None:
                return super().convert_humming(tensors, shape_n_stacks, shape_k_stacks, param_dtype, num_experts, **options)
            types = facade.dtypes
            codes = CodesSchema(
                b_dtype=types.uint4, bs_dtype=types.bfloat16, weight_scale_group_size=GROUP, gated=len(shape_n_stacks) == 2
            )
            return codes, {"weight": weight.view(torch.int32), "weight_scale": tensors["weight_scale"].to(param_dtype)}

    return Classes(SourceSchema, CodesSchema)


def _is_int4_group32(schema: object) -> bool:
    wanted = {"format": "pack-quantized", "type": "int", "num_bits": 4, "strategy": "group", "group_size": GROUP, "symmetric": True,
              "actorder": None}  # fmt: skip
    return all(getattr(schema, name) == value for name, value in wanted.items())
