"""The routed experts of one layer in a checkpoint: their names, and the rows and columns of one expert at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from chord_jit.errors import InputError
from chord_jit.formats.model_config import ModelShape
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.shards import Shards
from chord_jit.formats.w4a16 import GROUP, pack_expert

_PREFIXES = ("", "language_model.")
_PROJECTIONS = ("gate", "up", "down")
#: The tensors of one projection.
_PARTS = ("weight_packed", "weight_scale", "weight_shape")


@dataclass(frozen=True)
class ExpertReader:
    """``neurons``: those of each expert that are read, whole groups of 32: rows of gate and up, columns of down."""

    shards: Shards
    root: str
    shape: ModelShape
    neurons: range

    def names(self, expert: int) -> list[str]:
        """Every tensor that one expert needs."""
        return [f"{self.root}.{expert}.{proj}_proj.{part}" for proj in _PROJECTIONS for part in _PARTS]

    def refuse_other_schemes(self, experts: Sequence[int]) -> None:
        """Raises ``InputError`` where any tensor but those of ``names`` is listed below a projection of one of ``experts``: whatever
        it means, it would not be computed.
        """
        modules = (f"{self.root}.{expert}.{proj}_proj" for expert in experts for proj in _PROJECTIONS)
        listed = ((module, name) for module in modules for name in self.shards.below(module))
        extra = next(((module, name) for module, name in listed if name.removeprefix(f"{module}.") not in _PARTS), None)
        if extra is not None:
            module, name = extra
            rule = "it must be weight_packed, weight_scale and weight_shape alone: symmetric, no activation order, no quantised inputs"
            given = {"file": self.shards.path(name), "tensor": name}
            raise InputError(f"load {module}.weight", rule, given, "use a checkpoint without it")

    def check(self, expert: int) -> None:
        """Raises ``InputError`` unless dtypes and shapes of one expert are those that config.json implies. No weight is read."""
        for proj in _PROJECTIONS:
            for stored in self._stored(expert, proj):
                self.shards.check(*stored)

    def matrix(self, expert: int, proj: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Words int32 [N, K/8] and scales BF16 [N, K/32] of ``gate``, ``up`` or ``down``, local neurons only: views of the mapped file."""
        words, scale = self._stored(expert, proj)
        return self.shards.tensor(*words, self._local(proj, 8)), self.shards.tensor(*scale, self._local(proj, GROUP))

    def _stored(self, expert: int, proj: str) -> Iterator[tuple[str, tuple[torch.dtype], tuple[int, int]]]:
        """Name, dtype and whole shape of words and scales, once ``weight_shape`` was found to be [N, K]."""
        hidden, inner = self.shape.hidden, self.shape.moe_intermediate
        name = f"{self.root}.{expert}.{proj}_proj.weight"
        n, k = (hidden, inner) if proj == "down" else (inner, hidden)
        declared = self.shards.tensor(f"{name}_shape", (torch.int64, torch.int32), (2,)).tolist()
        if declared != [n, k]:
            raise InputError(
                f"load {name}", "weight_shape must be [N, K] as config.json implies",
                {"file": self.shards.path(f"{name}_shape"), "weight_shape": declared, "wanted": [n, k]},
                "use the config.json that belongs to these shards",
            )
        yield f"{name}_packed", (torch.int32,), (n, k // 8)
        yield f"{name}_scale", (torch.bfloat16,), (n, k // GROUP)

    def _local(self, proj: str, per: int) -> tuple[slice, slice]:
        """Rows and columns of this rank, where ``per`` neurons of down share a column."""
        if proj == "down":
            return slice(None), slice(self.neurons.start // per, self.neurons.stop // per)
        return slice(self.neurons.start, self.neurons.stop), slice(None)

    def pack(self, weights: MoEWeights, local: int, expert: int) -> None:
        """Packs ``expert`` into place ``local`` of ``weights``, on their device. Raises ``InputError``."""
        gate, up, down = (
            tuple(copied(part, weights.down.device).unsqueeze(0) for part in self.matrix(expert, proj)) for proj in _PROJECTIONS
        )
        with self._named(expert, "gate", "up"):
            pack_expert(weights.gate_up, local, *gate, up=up[0], up_scale=up[1])
        with self._named(expert, "down"):
            pack_expert(weights.down, local, *down)

    @contextmanager
    def _named(self, expert: int, *projections: str) -> Iterator[None]:
        """Adds the tensors and their files to what packing has to say about them."""
        try:
            yield
        except InputError as error:
            names = [f"{self.root}.{expert}.{proj}_proj.weight_scale" for proj in projections]
            files = ", ".join(sorted({str(self.shards.path(name)) for name in names}))
            raise InputError(f"load {' and '.join(names)}", error.rule, {**error.values, "file": files}, error.remedy) from None


def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` where it is to be packed: on the CPU it stays the view of the file that it is."""
    return tensor.to(device)


def root_of(shards: Shards, layer: int, expert: int) -> str:
    """``{prefix}model.layers.L.mlp.experts`` with the prefix that this checkpoint uses."""
    roots = [f"{prefix}model.layers.{layer}.mlp.experts" for prefix in _PREFIXES]
    return next((root for root in roots if f"{root}.{expert}.gate_proj.weight_packed" in shards), roots[0])
