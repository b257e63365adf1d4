"""The peer's whole layer, strung together as vLLM does it: rows grouped, gate/up, the peer's own SwiGLU kernel, down, combined.

What vLLM does with compiled ops of its own has stand-ins (``stand_ins``); all else is the peer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from chord_jit.bench.peers import Configuration, Humming
from chord_jit.bench.stand_ins import Rows, combine
from chord_jit.bench.whole_inputs import WholeInputs

#: SwiGLU as vLLM asks for it: gate in the first half of a row.
_SWIGLU = {"activation_type": "binary_split", "activation_impl": "(a / (1.f + expf(-a))) * b", "layout": "normal"}

#: Rows an expert from which rows are copied together.
GROUPED_ROWS = 16

Call = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Copy:
    """The peer's weights of one layer."""

    gate_up: Humming
    down: Humming


@dataclass(frozen=True, eq=False)
class Form:
    """One way to run the peer's layer. ``layout``: indexed, or offsets, where rows are copied together by expert first."""

    layout: str
    gate_up: Configuration
    down: Configuration

    def __str__(self) -> str:
        return f"{self.layout}: {self.gate_up}; {self.down}"


@dataclass(frozen=True, eq=False)
class Pools:
    """``gate_up``, ``down``: the peer's own configurations of each projection in the indexed layout. ``grouped``: by rows in all, what
    its heuristic picks for rows copied together."""

    gate_up: list[Configuration]
    down: list[Configuration]
    grouped: dict[int, Form]

    @classmethod
    def of(cls, copy: Copy, rows: Iterable[int]) -> Pools:
        """Compiles them. ``rows``: of the cases to come; few rows an expert are never worth copying together."""
        many = sorted({one for one in rows if one >= GROUPED_ROWS * copy.gate_up.experts})
        try:
            pairs = zip(copy.gate_up.defaults("offsets", many), copy.down.defaults("offsets", many), strict=True) if many else ()
            grouped = {one: Form("offsets", *pair) for one, pair in zip(many, pairs, strict=True)}
        except Exception:  # a package of others may raise anything; the indexed forms stand without these
            grouped = {}
        return cls(copy.gate_up.own_configurations("indexed"), copy.down.own_configurations("indexed"), grouped)


class PeerLayer:
    """Buffers of one case, and the steps of the layer in them. ``out``: BF16 [tokens, hidden], NaN where nothing was written."""

    def __init__(self, inputs: WholeInputs):
        rows, layer = inputs.case.rows, inputs.case.layer
        self.inputs, self.experts = inputs, layer.experts
        self.wide, self.inner = inputs.empty(rows, layer.gate_up.n), inputs.empty(rows, layer.down.k)
        self.routed, self.out = inputs.empty(rows, layer.hidden), inputs.empty(inputs.x.shape[0], layer.hidden)

    def steps(self, copy: Copy, form: Form) -> dict[str, Call]:
        """The steps by name, in order; each one enqueues."""
        return self._indexed(copy, form) if form.layout == "indexed" else self._grouped(copy, form)

    def whole(self, copy: Copy, form: Form) -> Call:
        """All steps in a row."""
        steps = list(self.steps(copy, form).values())

        def run() -> None:
            for step in steps:
                step()

        return run

    def _indexed(self, copy: Copy, form: Form) -> dict[str, Call]:
        """Down's rows are aligned once more where its blocks are of another size."""
        inputs = self.inputs
        first = Rows(inputs.topk_ids, self.experts, form.gate_up.block_m)
        second = first if form.down.block_m == first.block_m else Rows(inputs.topk_ids, self.experts, form.down.block_m)

        def align() -> None:
            first.align()
            if second is not first:
                second.align()

        return {
            "align": align,
            "gate_up": copy.gate_up.call(form.gate_up, inputs.x, self.wide, blocks(first, inputs.top_k)),
            "swiglu": lambda: copy.down.process(self.wide, self.inner, **_SWIGLU),
            "down": copy.down.call(form.down, self.inner, self.routed, blocks(second, 1)),
            "combine": lambda: combine(self.routed, inputs.topk_weights, self.out),
        }

    def _grouped(self, copy: Copy, form: Form) -> dict[str, Call]:
        inputs = self.inputs
        rows, gathered = Rows(inputs.topk_ids, self.experts, 1), torch.empty_like(self.routed)
        layout, valid = {"expert_layout": rows.offsets}, rows.offsets[-1:]

        def group() -> None:
            rows.group()
            copy.gate_up.process(inputs.x, gathered, layout="scatter", scatter_idx=rows.places, num_valid_tokens=valid)

        return {
            "align": group,
            "gate_up": copy.gate_up.call(form.gate_up, gathered, self.wide, layout),
            "swiglu": lambda: copy.down.process(self.wide, self.inner, num_valid_tokens=valid, **_SWIGLU),
            "down": copy.down.call(form.down, self.inner, self.routed, layout),
            "combine": lambda: combine(self.routed, inputs.topk_weights, self.out, rows.places),
        }


def blocks(rows: Rows, top_k: int) -> dict:
    """What an indexed launch of the peer is told of aligned rows."""
    return {"sorted_ids": rows.sorted_ids, "expert_ids": rows.expert_ids, "num_tokens_padded": rows.padded, "top_k": top_k}

