"""Whole layers timed: three layers of weights in turn, ours and the peer's, from hidden states to combined output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from chord_jit.bench import our_layer, peer_search, stand_ins, whole_inputs, workload
from chord_jit.bench.graphs import captured, in_turn
from chord_jit.bench.host import host_time
from chord_jit.bench.measure import Bench, Variant, identity, take_turns
from chord_jit.bench.peer_layer import Copy, Form, PeerLayer, Pools
from chord_jit.bench.peers import Humming
from chord_jit.bench.whole_cases import WholeCase
from chord_jit.bench.whole_inputs import Exact, WholeInputs
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.layers.moe import MoELayer

#: Layers of a model in turn: none finds its weights, or its neighbour's, in L2.
LAYERS = 3


@dataclass(frozen=True, eq=False)
class Weights:
    """The same values of ``LAYERS`` layers: ours, and the peer's; none of the peer's where it takes no part."""

    ours: list[MoELayer]
    copies: list[Copy]
    pools: Pools | None


def weights(cases: Sequence[WholeCase], generator: torch.Generator, failures: list[str], *, peer: bool) -> Weights:
    """Fresh values for cases of one layer. ``failures``: why the peer takes no part, if it was asked to."""
    layer, top_k = cases[0].layer, cases[0].draw.picks
    ours, copies, pools = [], [], None
    for _ in range(LAYERS):
        gate_up, down = (workload.weights(one, generator) for one in (layer.gate_up, layer.down))
        ours.append(MoELayer(MoEWeights(gate_up.fused, down.plain), top_k=top_k))
        if peer:
            try:
                copies.append(Copy(*(Humming(drawn.layer, drawn.words, drawn.scale) for drawn in (gate_up, down))))
                pools = pools or Pools.of(copies[0], (case.rows for case in cases))
            except Exception as failed:  # a package of others may raise anything; our own times stand without it
                failures.append(f"{layer.name}: no peer: {type(failed).__name__}: {' '.join(str(failed).split())[:300]}")
                peer = False
    return Weights(ours, copies if peer else [], pools)


def measure(bench: Bench, case: WholeCase, drawn: Weights) -> dict:
    """The row of ``case``. Whatever computes a wrong result or is refused says so and gets no time."""
    inputs = whole_inputs.draw(case, bench.generator)
    exact = Exact.of([layer.weights for layer in drawn.ours], inputs)
    row = {**identity(case), "layers": LAYERS}
    variants = our_layer.variants(drawn.ours, inputs, exact, bench.facts)
    if drawn.copies:
        variants |= _peer(bench, inputs, drawn, exact, row)
    times = take_turns(bench, variants)
    if "ours" in times:
        row["host_us"] = asdict(host_time(our_layer.eager(drawn.ours[0], inputs), times["ours"].median))
    row["variants"] = {name: variant.record for name, variant in variants.items()}
    return row


def _peer(bench: Bench, inputs: WholeInputs, drawn: Weights, exact: Exact, row: dict) -> dict[str, Variant]:
    """The peer's default and best form, and the steps of the best alone. Into ``row``: what every form took, and what stood in."""
    row["stand_ins"] = stand_ins.NAMES
    try:
        layer = PeerLayer(inputs)
        choice = peer_search.choose(bench, layer, drawn.copies[0], drawn.pools, exact)
    except Exception as failed:  # a package of others may raise anything, and a row without its peer is still a row
        return {"peer_default": Variant.refused(failed)}
    row["peer_forms"] = choice.seen
    found = {"peer_default": _in_turn(layer, drawn.copies, choice.default, exact)}
    if choice.best is not None:
        found["peer_best"] = _in_turn(layer, drawn.copies, choice.best, exact)
        found |= _steps(layer, drawn.copies, choice.best)
    return found


def _in_turn(layer: PeerLayer, copies: Sequence[Copy], form: Form, exact: Exact) -> Variant:
    """The form on every copy; wrong where it is wrong on one."""
    each = [peer_search.attempt(layer, copy, form, wanted) for copy, wanted in zip(copies, exact.outs, strict=True)]
    worst = max(each, key=lambda variant: variant.record["error"])
    if not worst.right:
        return worst
    return Variant(in_turn([variant.call for variant in each]), **worst.record)


def _steps(layer: PeerLayer, copies: Sequence[Copy], form: Form) -> dict[str, Variant]:
    """Each step alone, what goes into it left there by a whole call; products take the copies in turn."""
    found = {}
    try:
        layer.whole(copies[0], form)()
        every = [layer.steps(copy, form) for copy in copies]
        for steps in every:
            steps["align"]()
        for name in every[0]:
            taking_part = every if name in our_layer.PRODUCTS else every[:1]
            found[f"peer_{name}"] = Variant(in_turn([captured(steps[name]) for steps in taking_part]))
    except Exception as failed:  # as above
        found["peer_steps"] = Variant.refused(failed)
    return found
