"""The peer: the W4A16 MoE kernel of ``humming-kernels``, in its default configuration and in the best of its own.

Its heuristic picks one configuration per row count; the best of its own is the fastest, for a case, of every
configuration that the heuristic picks for the layer and its kind of GEMM at any row count. Weights keep all 16 codes: without code 0 the
package would re-encode them to another format, which is slower.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from chord_jit.bench.layers import Layer
from chord_jit.formats.w4a16 import GROUP

NAME = "humming-kernels"
#: Layout of a case to the peer's kind of GEMM.
_GEMM_TYPES = {"indexed": "indexed", "masked": "grouped_masked", "offsets": "grouped_contiguous"}
_EVERY_ROW_COUNT = 1 << 30
_LOCKS = 2048


def available() -> bool:
    """Whether the peer's package is installed."""
    return importlib.util.find_spec("humming") is not None


def version() -> str:
    return importlib.metadata.version(NAME)


@dataclass(frozen=True)
class Configuration:
    """One compiled configuration. ``handle``: the peer's launch record, int64 [4] on the CPU."""

    tuning: dict
    handle: torch.Tensor

    @property
    def block_m(self) -> int:
        return self.tuning["block_shape"][0]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.tuning["block_shape"]))
        parts = [f"{shape} {self.tuning['mma_type']} s{self.tuning.get('num_stages', '?')} ctas{self.tuning.get('num_ctas_per_sm', 1)}"]
        parts += [flag for flag in ("use_stream_k", "use_warp_spec") if self.tuning.get(flag)]
        return " ".join(parts)


class Humming:
    """The peer's copy of one layer. ``words``: int32 [E, N, K/8], low nibble first; ``scale``: BF16 [E, N, K/32]."""

    def __init__(self, layer: Layer, words: torch.Tensor, scale: torch.Tensor):
        from humming.layer import HummingLayerMethod
        from humming.schema import HummingWeightSchema

        self.experts, self._module = layer.experts, torch.nn.Module()
        for name, tensor in (("weight", words), ("weight_scale", scale)):
            self._module.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        schema = HummingWeightSchema(b_dtype="uint4", bs_dtype="bfloat16", weight_scale_group_size=GROUP)
        HummingLayerMethod.prepare_layer_meta(
            self._module, shape_n=layer.n, shape_k=layer.k, weight_schema=schema, num_experts=layer.experts, torch_dtype=torch.bfloat16
        )
        HummingLayerMethod.transform_humming_layer(self._module)
        self._meta = self._module.humming_metas[""]
        self._locks = torch.zeros(_LOCKS, dtype=torch.int32, device=words.device)

    def default(self, layout: str, rows: int) -> Configuration:
        """The configuration that the peer's heuristic picks for ``rows`` rows in all."""
        return self.defaults(layout, [rows])[0]

    def defaults(self, layout: str, rows: Sequence[int]) -> list[Configuration]:
        """The same for several row counts, compiled side by side."""
        from humming.tune import get_heuristics_config

        return self._compile(layout, [dict(get_heuristics_config(self._meta, shape_m=one, **_compute(layout))) for one in rows])

    def own_configurations(self, layout: str) -> list[Configuration]:
        """Every configuration that the heuristic picks for this layer at some row count, compiled."""
        from humming.tune import get_heuristics_config

        distinct: list[dict] = []
        for _, _, tuning in get_heuristics_config(self._meta, **_compute(layout)):
            # num_sms trims the grid to the row count the entry was made for; other row counts want the whole GPU.
            tuning = {key: value for key, value in dict(tuning).items() if key != "num_sms"}
            if tuning not in distinct:
                distinct.append(tuning)
        return self._compile(layout, distinct)

    def call(self, configuration: Configuration, x: torch.Tensor, out: torch.Tensor, rows: dict) -> Callable[[], None]:
        """A call without arguments that enqueues the peer's kernel. ``rows``: see ``sides.Inputs.peer_arguments``."""
        from humming.ops import launch_kernel

        arguments = dict(
            configs=configuration.handle,
            inputs=x,
            weight=self._module.weight,
            weight_scale=self._module.weight_scale,
            outputs=out,
            locks=self._locks,
            **rows,
        )
        return lambda: launch_kernel(**arguments)

    def process(self, x: torch.Tensor, out: torch.Tensor, **wishes) -> None:
        """Enqueues the peer's kernel for what goes into this layer: rows scattered, or an activation. ``wishes``: its arguments."""
        from humming.forward import may_process_input

        may_process_input(self._meta, x, outputs=out, **wishes)

    def _compile(self, layout: str, tunings: list[dict]) -> list[Configuration]:
        from humming.kernel.humming import HummingKernel

        intervals = [[index, index + 1, tuning] for index, tuning in enumerate(tunings)]
        table = HummingKernel.prepare_kernels(self._meta.to_str(), json.dumps(_compute(layout)), json.dumps(intervals)).view(-1, 4).clone()
        table[:, 0], table[:, 1] = 0, _EVERY_ROW_COUNT
        return [Configuration(tuning, row.contiguous()) for tuning, row in zip(tunings, table, strict=True)]


def _compute(layout: str) -> dict[str, str]:
    return {"gemm_type": _GEMM_TYPES[layout]}
