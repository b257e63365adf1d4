"""The peer's best whole layer for a case, among ways to combine its own configurations.

Each projection's configurations are timed alone first. The ways: what its heuristic picks; the fastest of each projection,
rows aligned twice where their blocks differ; the fastest pairs that share blocks; and in prefill, grouped rows as its
heuristic picks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from chord_jit.bench import check, targets
from chord_jit.bench.graphs import captured
from chord_jit.bench.measure import GLANCE_ROUNDS, SWEEP_ROUNDS, Bench, Variant, fastest
from chord_jit.bench.peer_layer import Copy, Form, PeerLayer, Pools, blocks
from chord_jit.bench.peers import Configuration, Humming
from chord_jit.bench.stand_ins import Rows
from chord_jit.bench.timing import interleave
from chord_jit.bench.whole_inputs import Exact

_SHARED_PAIRS = 3


@dataclass(frozen=True)
class Timed:
    """A configuration of one projection and its time alone."""

    configuration: Configuration
    us: float


@dataclass(frozen=True, eq=False)
class Choice:
    """``default``: the form of the peer's heuristic; ``best``: the fastest right one, if any; ``seen``: median us of each form by its text,
    or why it has none."""

    default: Form
    best: Form | None
    seen: dict[str, float | str]


def choose(bench: Bench, layer: PeerLayer, copy: Copy, pools: Pools, exact: Exact) -> Choice:
    """Times the forms on one copy of the layer. ``exact``: of that copy."""
    rows = layer.inputs.case.rows
    default = Form("indexed", copy.gate_up.default("indexed", rows), copy.down.default("indexed", rows))
    forms = [default, *_ways(*_projections(bench, layer, copy, pools, default, exact))]
    forms += [pools.grouped[rows]] if rows in pools.grouped else []
    tried = {str(form): form for form in forms}
    variants = {name: attempt(layer, copy, form, exact.outs[0]) for name, form in tried.items()}
    right = {name: variant.call for name, variant in variants.items() if variant.right}
    times = interleave(right, bench.flush, SWEEP_ROUNDS) if right else {}
    seen = {name: times[name].median if name in times else _why(variants[name]) for name in tried}
    return Choice(default, tried[fastest(times)[0]] if times else None, seen)


def attempt(layer: PeerLayer, copy: Copy, form: Form, wanted: torch.Tensor) -> Variant:
    """The layer as a graph, once its result is known. What the peer raises is written down: a row without a form is still a row."""
    try:
        call = captured(layer.whole(copy, form))
        layer.out.fill_(float("nan"))
        call()
        error = check.relative_l2(layer.out, wanted)
    except Exception as refused:  # a package of others may raise anything
        return Variant.refused(refused, configuration=str(form))
    return Variant(call, error=error, configuration=str(form))


def _why(variant: Variant) -> str:
    return variant.record.get("refused") or f"wrong: error {variant.record['error']:.2e}"


def _projections(
    bench: Bench, layer: PeerLayer, copy: Copy, pools: Pools, default: Form, exact: Exact
) -> tuple[dict[int, Timed], dict[int, Timed]]:
    """The fastest configuration of gate/up and of down at each block size. Leaves the exact activations in ``layer.inner``."""
    inputs = layer.inputs
    layer.inner.copy_(exact.inner)
    gate_up = _alone(
        bench, layer, [default.gate_up, *pools.gate_up], copy.gate_up, (inputs.x, layer.wide, inputs.top_k), exact.wide
    )
    down = _alone(bench, layer, [default.down, *pools.down], copy.down, (layer.inner, layer.routed, 1), exact.routed)
    return gate_up, down


def _alone(
    bench: Bench, layer: PeerLayer, pool: Iterable[Configuration], peer: Humming, call: tuple[torch.Tensor, torch.Tensor, int],
    wanted: torch.Tensor,
) -> dict[int, Timed]:
    x, out, top_k = call
    aligned: dict[int, Rows] = {}
    right: dict[str, Callable[[], object]] = {}
    named: dict[str, Configuration] = {}
    for configuration in pool:
        if configuration.block_m not in aligned:
            aligned[configuration.block_m] = rows = Rows(layer.inputs.topk_ids, layer.experts, configuration.block_m)
            rows.align()
        try:
            launch = peer.call(configuration, x, out, blocks(aligned[configuration.block_m], top_k))
            out.fill_(float("nan"))
            launch()
            wrong = not check.relative_l2(out, wanted) <= targets.WRONG_ABOVE
        except RuntimeError:  # one of many: what does not run is no candidate
            continue
        if not wrong:
            name = str(len(named))
            right[name], named[name] = launch, configuration
    return _by_block(bench, right, named)


def _by_block(bench: Bench, right: dict[str, Callable[[], object]], named: dict[str, Configuration]) -> dict[int, Timed]:
    """A glance at all finds the fastest of each block size; a longer look at those gives their times."""
    glance = interleave(right, bench.flush, GLANCE_ROUNDS) if right else {}
    first: dict[int, str] = {}
    for name in sorted(glance, key=lambda one: glance[one].median):
        first.setdefault(named[name].block_m, name)
    times = interleave({name: right[name] for name in first.values()}, bench.flush, SWEEP_ROUNDS) if first else {}
    return {block_m: Timed(named[name], times[name].median) for block_m, name in first.items()}


def _ways(gate_up: dict[int, Timed], down: dict[int, Timed]) -> list[Form]:
    if not gate_up or not down:
        return []

    def us(block_m: int) -> float:
        return gate_up[block_m].us + down[block_m].us

    fastest_each = [min(times.values(), key=lambda timed: timed.us).configuration for times in (gate_up, down)]
    shared = sorted(gate_up.keys() & down.keys(), key=us)[:_SHARED_PAIRS]
    pairs = [fastest_each, *([gate_up[block_m].configuration, down[block_m].configuration] for block_m in shared)]
    return [Form("indexed", *pair) for pair in pairs]
