"""The decode step of ``chord demo``: one MoE layer by the kernels or by the reference, and what both must agree with."""

from __future__ import annotations

from pathlib import Path

import torch

from chord_jit import api
from chord_jit.bench.targets import ERROR_LIMITS
from chord_jit.device import DeviceFacts
from chord_jit.families.indexed import FAMILY
from chord_jit.formats.checkpoint import MoEWeights
from chord_jit.formats.shards import Shards
from chord_jit.formats.w4a16 import unpack_w4a16
from chord_jit.jit import engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.reference.indexed import indexed as reference
from chord_jit.routing.indexed import align_blocks

#: Relative L2 error against FP64. Each output is rounded to BF16 once, by at most 2^-8 of itself, and FP32 sums add a millionth of
#: that. So no number of outputs may be off by more, but many are off by 1.66e-3, as if drawn at random: over n outputs the error
#: deviates from it by 2e-3 / sqrt(n), with SwiGLU by 5e-3 / sqrt(n) (measured). From ``_MANY`` on six deviations are within the limits.
#: Kernels that round their weights too have limits of their own; they take so many rows that six deviations are within 2^-8 always.
_ROUNDED_ONCE, _MANY = 2**-8, 8192
_SUM_LIMIT, _ = ERROR_LIMITS["w4a16_mma"]


class DecodeStep:
    """Random activations and routing for one layer, and the ways to compute it.

    A result is three tensors: gate/up with SwiGLU [M * top_k, intermediate], down with routing weights
    [M * top_k, hidden], and their sum over the experts of a token [M, hidden].
    """

    def __init__(self, weights: MoEWeights, tokens: int, top_k: int, seed: int, facts: DeviceFacts):
        self.weights, self.tokens, self.top_k, self.facts = weights, tokens, top_k, facts
        where = weights.down.device
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(tokens, weights.down.experts, generator=generator)
        chosen, ids = scores.softmax(-1).topk(top_k)
        self.x = torch.randn(tokens, weights.gate_up.k, generator=generator).bfloat16().to(where)
        self.topk_weights = (chosen / chosen.sum(-1, keepdim=True)).to(where)
        rows = tokens * top_k / weights.down.experts
        free = self._gate_up_problem(rows, 0)
        self.block_m = FAMILY.schedule(free).bm
        self._problems = [self._gate_up_problem(rows, self.block_m), self._down_problem(rows)]
        self.routing = align_blocks(ids.to(where), self.block_m, weights.down.experts)

    def _gate_up_problem(self, rows: float, block_m: int) -> object:
        weight = self.weights.gate_up
        return FAMILY.problem(
            self.facts, weight.experts, weight.n, weight.k, rows, block_m=block_m, interleaved=weight.interleaved, swiglu=True
        )

    def _down_problem(self, rows: float) -> object:
        weight = self.weights.down
        return FAMILY.problem(self.facts, weight.experts, weight.n, weight.k, rows, block_m=self.block_m, weighted=True)

    def problems(self) -> list[object]:
        """What the step asks of the kernels."""
        return self._problems

    def specs(self) -> list[KernelSpec]:
        """The kernels that serve it."""
        return [FAMILY.spec(problem, FAMILY.schedule(problem)) for problem in self._problems]

    def kernels(self) -> list[dict[str, object]]:
        """What serves it, one mapping of column to value each."""
        listed = []
        for name, problem, spec in zip(("gate/up + SwiGLU", "down x weights"), self._problems, self.specs(), strict=True):
            schedule, entry = FAMILY.schedule(problem), engine.build(spec)
            facts = {name: entry.facts.get(key) for name, key in (("registers", "registers"), ("spilled bytes", "spill_bytes"))}
            listed.append({"projection": name, "schedule": str(schedule), "key": entry.digest[:12], "bytes": len(entry.cubin), **facts})
        return listed

    def stages(self) -> list[tuple[str, str, float]]:
        """Name, shape and error bound of the three tensors of a result."""
        rows = self.tokens * self.top_k
        gate_up, down = self.weights.gate_up, self.weights.down
        (_, swiglu), (plain, _) = (ERROR_LIMITS[FAMILY.schedule(problem).kernel] for problem in self._problems)
        inner, routed = _most(rows * gate_up.n // 2, swiglu), _most(rows * down.n, plain)
        # Both products' errors and that of the rounded sum are independent: that they all add up is more than ever happens.
        layer = inner + routed + _most(self.tokens * down.n, _SUM_LIMIT)
        return [
            ("gate/up + SwiGLU", f"{rows} x {gate_up.k} -> {gate_up.n // 2}", inner),
            ("down x routing weights", f"{rows} x {down.k} -> {down.n}", routed),
            ("layer: sum over experts", f"{self.tokens} x {down.n}", layer),
        ]

    def run_kernels(self) -> tuple[torch.Tensor, ...]:
        """The step on the GPU."""
        inner = api.indexed(self.x, self.weights.gate_up, self.routing, swiglu=True, checked=True)
        routed = api.indexed(inner, self.weights.down, self.routing.for_down(), topk_weights=self.topk_weights, checked=True)
        return inner, routed, self._combine(routed)

    def run_reference(self) -> tuple[torch.Tensor, ...]:
        """The step in FP64 by the reference, rounded to BF16 where the kernels round."""
        inner = self._gate_up(self.x).bfloat16()
        routed = self._down(inner).bfloat16()
        return inner, routed, self._combine(routed)

    def compare(self, result: tuple[torch.Tensor, ...]) -> list[float]:
        """Relative L2 distance of each stage from FP64; each stage starts from what the one before it gave.

        The last one is the exception: the whole layer in FP64, no rounding in between.
        """
        inner, routed, out = result
        unrounded = self._combine(self._down(self._gate_up(self.x)), torch.float64)
        wanted = (self._gate_up(self.x), self._down(inner), unrounded)
        return [_distance(got, want) for got, want in zip((inner, routed, out), wanted, strict=True)]

    def _combine(self, routed: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        widest = torch.promote_types(routed.dtype, torch.float32)
        return routed.view(self.tokens, self.top_k, -1).to(widest).sum(1).to(dtype)

    def _gate_up(self, x: torch.Tensor) -> torch.Tensor:
        return reference(x, self.weights.gate_up, self.routing, swiglu=True)

    def _down(self, x: torch.Tensor) -> torch.Tensor:
        return reference(x, self.weights.down, self.routing.for_down(), topk_weights=self.topk_weights)


def differing_bits(folder: Path, weights: MoEWeights) -> int:
    """How many codes and scales of the packed layer differ from the tensors that lie in the checkpoint: 0, or it is broken."""
    wrong = 0
    with Shards(folder) as shards:
        for packed, projections in ((weights.gate_up, ("gate", "up")), (weights.down, ("down",))):
            codes, scales = unpack_w4a16(packed)
            rows = packed.n // len(projections)
            for expert in range(packed.experts):
                for part, projection in enumerate(projections):
                    name = f"model.layers.1.mlp.experts.{expert}.{projection}_proj.weight"
                    words = shards.tensor(f"{name}_packed", (torch.int32,), (rows, packed.k // 8))
                    scale = shards.tensor(f"{name}_scale", (torch.bfloat16,), (rows, packed.k // 32))
                    lying = (words.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32)).bitwise_and(15).flatten(1)
                    here = slice(part * rows, (part + 1) * rows)
                    wrong += int((codes[expert, here].cpu() != lying).sum()) + int((scales[expert, here].cpu() != scale).sum())
    return wrong


def _most(outputs: int, limit: float) -> float:
    return limit if outputs >= _MANY else _ROUNDED_ONCE


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())
