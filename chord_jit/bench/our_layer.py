"""Our side of a whole-layer case: the layer, its two products alone, and the kernels around them alone, each as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from chord_jit import api
from chord_jit.bench import check
from chord_jit.bench.graphs import captured, in_turn
from chord_jit.bench.measure import Variant
from chord_jit.bench.whole_cases import WholeCase
from chord_jit.bench.whole_inputs import Exact, WholeInputs
from chord_jit.device import DeviceFacts
from chord_jit.errors import ChordError
from chord_jit.families.base import family
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY
from chord_jit.families.indexed_problem import IndexedProblem, shared_block_m
from chord_jit.jit.spec import KernelSpec
from chord_jit.layers.moe import MoELayer
from chord_jit.rows import kernels, pipeline, route
from chord_jit.rows.combine import combine_rows
from chord_jit.schedules.schedule import Schedule

#: The parts of a layer that read its weights, so take the layers in turn.
PRODUCTS = ("gate_up", "down")

Call = Callable[[], object]


def chosen(case: WholeCase, facts: DeviceFacts, *, alone: bool) -> dict[str, tuple[object, Schedule]]:
    """Problem and schedule of each product: ``alone``, each with the blocks that suit it; or as the layer takes them."""
    free = _free(case, facts)
    if not alone and pipeline.way_for(facts.arch, case.layer.down.k, case.expected_rows) == "contiguous":
        return {name: _together(problem, case.expected_rows) for name, problem in free.items()}
    shared = None if alone else shared_block_m(*free.values())
    problems = {name: replace(problem, block_m=shared or FAMILY.schedule(problem).bm) for name, problem in free.items()}
    return {name: (problem, FAMILY.schedule(problem)) for name, problem in problems.items()}


def launches(case: WholeCase, facts: DeviceFacts) -> Iterator[tuple[str, str, KernelSpec | None]]:
    """Name, schedule and kernel of everything that the case launches; no kernel where a product is refused."""
    for alone in (False, True):
        try:
            for name, (problem, schedule) in chosen(case, facts, alone=alone).items():
                yield f"{case.name} {name}", str(schedule), family(problem.family).spec(problem, schedule)
        except ChordError as refused:
            yield case.name, type(refused).__name__, None
    for stem, kinds in kernels.ALL.items():
        yield stem, "", kinds[0].spec(facts.arch)


def variants(layers: Sequence[MoELayer], inputs: WholeInputs, exact: Exact, facts: DeviceFacts) -> dict[str, Variant]:
    """``ours`` and its parts; what is refused says so. Products and the layer take the layers in turn."""
    products = _attempt(lambda: chosen(inputs.case, facts, alone=True))
    found = {"ours": _attempt(lambda: _whole(layers, inputs, exact, facts))}
    if isinstance(products, Variant):
        return found | dict.fromkeys(PRODUCTS, products)
    gate_up, down = (products[name] for name in PRODUCTS)
    found["gate_up"] = _attempt(lambda: _gate_up(layers, inputs, exact, *gate_up))
    found["down"] = _attempt(lambda: _down(layers, inputs, exact, *down))
    found["route"] = _attempt(lambda: _route(inputs, facts))
    found["combine"] = _attempt(lambda: _combine(inputs, exact))
    return found


def eager(layer: MoELayer, inputs: WholeInputs) -> Call:
    """The layer as a user calls it, without a graph."""
    out = inputs.empty(*inputs.x.shape)
    return lambda: layer(inputs.x, inputs.topk_ids, inputs.topk_weights, out=out)


def _free(case: WholeCase, facts: DeviceFacts) -> dict[str, IndexedProblem]:
    gate_up, down, rows = case.layer.gate_up, case.layer.down, case.expected_rows
    return {
        "gate_up": FAMILY.problem(facts, gate_up.experts, gate_up.n, gate_up.k, rows, interleaved=True, swiglu=True),
        "down": FAMILY.problem(facts, down.experts, down.n, down.k, rows, weighted=True),
    }


def _together(problem: IndexedProblem, rows: float) -> tuple[object, Schedule]:
    """The same product over rows that lie together by expert."""
    asked = GROUPED.problem(
        problem.facts, problem.experts, problem.n, problem.k, rows, layout="offsets", interleaved=problem.interleaved, swiglu=problem.swiglu
    )
    return asked, GROUPED.schedule(asked)


def _attempt(make: Callable[[], object]) -> object:
    try:
        return make()
    except (ChordError, RuntimeError) as refused:
        return Variant.refused(refused)


def _whole(layers: Sequence[MoELayer], inputs: WholeInputs, exact: Exact, facts: DeviceFacts) -> Variant:
    out = inputs.empty(*inputs.x.shape)
    calls = [captured(lambda layer=layer: layer(inputs.x, inputs.topk_ids, inputs.topk_weights, out=out)) for layer in layers]
    error = max(_error(call, out, wanted) for call, wanted in zip(calls, exact.outs, strict=True))
    shared = chosen(inputs.case, facts, alone=False)
    return Variant(in_turn(calls), error=error, schedule="; ".join(str(schedule) for _, schedule in shared.values()))


def _gate_up(
    layers: Sequence[MoELayer], inputs: WholeInputs, exact: Exact, problem: IndexedProblem, schedule: Schedule
) -> Variant:
    routing, out = inputs.routing(problem.block_m), inputs.empty(*exact.inner.shape)
    calls = [
        captured(lambda weight=layer.weights.gate_up: api.indexed(inputs.x, weight, routing, swiglu=True, out=out)) for layer in layers
    ]
    return Variant(in_turn(calls), error=_error(calls[0], out, exact.inner), schedule=str(schedule))


def _down(layers: Sequence[MoELayer], inputs: WholeInputs, exact: Exact, problem: IndexedProblem, schedule: Schedule) -> Variant:
    routing, out, x = inputs.routing(problem.block_m).for_down(), inputs.empty(*exact.routed.shape), exact.inner.bfloat16()
    by_row = inputs.topk_weights.reshape(-1, 1)
    calls = [
        captured(lambda weight=layer.weights.down: api.indexed(x, weight, routing, topk_weights=by_row, out=out)) for layer in layers
    ]
    return Variant(in_turn(calls), error=_error(calls[0], out, exact.routed * by_row), schedule=str(schedule))


def _route(inputs: WholeInputs, facts: DeviceFacts) -> Variant:
    problem, _ = chosen(inputs.case, facts, alone=False)["gate_up"]
    experts = inputs.case.layer.experts
    if problem.family == "grouped":
        return Variant(captured(lambda: route.groups(inputs.topk_ids, experts)))
    return Variant(captured(lambda: route.blocks(inputs.topk_ids, problem.block_m, experts)))


def _combine(inputs: WholeInputs, exact: Exact) -> Variant:
    x, out = exact.routed.bfloat16(), inputs.empty(*inputs.x.shape)
    _, rows = route.blocks(inputs.topk_ids, 16, inputs.case.layer.experts)
    call = captured(lambda: combine_rows(x, rows, out))
    return Variant(call, error=_error(call, out, x.double().unflatten(0, (-1, inputs.top_k)).sum(1)))


def _error(call: Call, out: torch.Tensor, wanted: torch.Tensor) -> float:
    out.fill_(float("nan"))
    call()
    return check.relative_l2(out, wanted)
