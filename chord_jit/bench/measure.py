"""One case: check, then time in turns, then energy and host time; one JSON row comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import torch

from chord_jit.bench import check, ours, targets, workload
from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.dense import Dense
from chord_jit.bench.host import host_time
from chord_jit.bench.peers import Configuration, Humming
from chord_jit.bench.power import Meter
from chord_jit.bench.reader import FORMS, Reader
from chord_jit.bench.sides import Inputs
from chord_jit.bench.timing import Spread, interleave
from chord_jit.bench.workload import Weights
from chord_jit.device import DeviceFacts
from chord_jit.errors import ChordError
from chord_jit.formats.w4a16 import PackedW4A16

SWEEP_ROUNDS = 16
#: A first look at the peer's configurations: those that take this much longer than the fastest are out.
GLANCE_ROUNDS, _GLANCE_FACTOR = 4, 1.3
_SETTLE_SECONDS = 1.0
_SECONDS_PER_VARIANT = 0.8
_READER_BAR_ROUNDS = 60
#: Variants whose energy is worth the better part of a second each.
_ENERGY = ("reader", "ours", "ours_swiglu", "peer_best", "cublas")


@dataclass(frozen=True, eq=False)
class Peer:
    """The peer's copy of the layer at hand and, by layout, everything its heuristic ever picks for it."""

    layer: Humming
    pools: dict[str, list[Configuration]]

    @classmethod
    def of(cls, layer: Humming, layouts: Iterable[str]) -> Peer:
        """Compiles every configuration for these layouts."""
        return cls(layer, {layout: layer.own_configurations(layout) for layout in sorted(layouts)})


@dataclass(frozen=True, eq=False)
class Bench:
    """What every case of a run shares. ``flush`` evicts L2; ``energy`` asks for the sustained loops; ``dense``: cuBLAS."""

    facts: DeviceFacts
    generator: torch.Generator
    flush: Callable[[], None]
    meter: Meter
    rounds: int
    energy: bool
    dense: Dense | None = None


class Variant:
    """A call that takes part, and what is known of it so far. ``record``: what its row will hold."""

    def __init__(self, call: Callable[[], object] | None, **known):
        self.call, self.record = call, {"us": None, **known}

    @classmethod
    def refused(cls, reason: Exception, **known) -> Variant:
        return cls(None, error=float("inf"), refused=str(reason)[:300], **known)

    @property
    def right(self) -> bool:
        return self.record.get("error", 0.0) <= targets.WRONG_ABOVE


def reader_bar(bench: Bench, packed: PackedW4A16) -> dict | None:
    """The best reader at 760 MB, which a run must bring up to speed; ``None`` where the weight is smaller."""
    experts = targets.bar_experts(packed.data[0].numel())
    if experts > packed.experts:
        return None
    readers = _readers(packed, tuple(range(experts)))
    form, us = fastest(interleave(readers, bench.flush, _READER_BAR_ROUNDS))
    return {"bytes": readers[form].bytes, "us": us.median, "form": form}


def measure(bench: Bench, case: AnyCase, weights: Weights, peer: Peer | None) -> dict:
    """The row of ``case``. Whatever computes a wrong result or is refused says so and gets no time."""
    inputs = workload.inputs(case, bench.generator)
    row = {**identity(case), "n": case.layer.n, "k": case.layer.k}
    variants: dict[str, Variant] = {}
    if case.reads:
        variants["reader"], row["reader_forms"] = _reader(bench, weights.plain, inputs.active)
    if case.multiplies and bench.dense is not None:
        variants["cublas"] = Variant(bench.dense, flops=bench.dense.flops)
    wanted = check.exact(weights.plain, inputs, swiglu=False)
    variants |= _ours_variants(bench, case, weights, inputs, wanted)
    if peer is not None:
        variants |= _peer_variants(bench, case, inputs, wanted, peer)
    times = take_turns(bench, variants)
    if "ours" in times:
        row["host_us"] = asdict(host_time(variants["ours"].call, times["ours"].median))
    row["variants"] = {name: variant.record for name, variant in variants.items()}
    return row


def take_turns(bench: Bench, variants: Mapping[str, Variant]) -> dict[str, Spread]:
    """Times every variant that is right, in turns, and then the energy of some, into their records."""
    right = {name: variant.call for name, variant in variants.items() if variant.right}
    times = interleave(right, bench.flush, bench.rounds, _SETTLE_SECONDS, _SECONDS_PER_VARIANT * len(right))
    for name in right:
        record = variants[name].record
        record["us"] = asdict(times[name])
        if bench.energy and name in _ENERGY:
            record["sustained"] = asdict(bench.meter.sustained(variants[name].call))
    return times


def identity(case: AnyCase) -> dict:
    """What a row says of its case, whichever family computes it."""
    layer = case.layer
    return {
        "case": case.name, "family": case.family, "kind": case.kind, "layout": case.layout, "layer": layer.name, "source": layer.source,
        "experts": layer.experts, "size": case.size, "seed": case.seed, "active": case.active, "busiest": case.busiest, "rows": case.rows,
        "bytes": case.bytes, "flops": case.flops,
    }  # fmt: skip


def _reader(bench: Bench, packed: PackedW4A16, active: tuple[int, ...]) -> tuple[Variant, dict[str, float]]:
    """The best reader of the case, and the median of every form.

    Only the best takes turns with the kernels: seven readers among them would cool the GPU for everybody.
    """
    readers = _readers(packed, active)
    for reader in readers.values():
        reader.check()
    forms = interleave(readers, bench.flush, SWEEP_ROUNDS)
    form, _ = fastest(forms)
    return Variant(readers[form], form=form), {name: spread.median for name, spread in forms.items()}


def _readers(packed: PackedW4A16, active: tuple[int, ...]) -> dict[str, Reader]:
    return {form.name: Reader.of_weight(form, packed, active) for form in FORMS}


def fastest(times: Mapping[str, Spread]) -> tuple[str, Spread]:
    name = min(times, key=lambda form: times[form].median)
    return name, times[name]


def _ours_variants(bench: Bench, case: AnyCase, weights: Weights, inputs: Inputs, wanted: torch.Tensor) -> dict[str, Variant]:
    """Ours, with SwiGLU where the layer is gated, and the companions on inputs of their own."""
    found = {"ours": _ours(bench, case, weights.plain, inputs, wanted, swiglu=False)}
    if weights.fused is not None:
        fused = check.exact(weights.fused, inputs, swiglu=True)
        found["ours_swiglu"] = _ours(bench, case, weights.fused, inputs, fused, swiglu=True)
    for name, other in case.companions:
        others = workload.inputs(other, bench.generator)
        found[name] = _ours(bench, other, weights.plain, others, check.exact(weights.plain, others, swiglu=False), swiglu=False)
    return found


def _ours(bench: Bench, case: AnyCase, weight: PackedW4A16, inputs: Inputs, wanted: torch.Tensor, *, swiglu: bool) -> Variant:
    try:
        bound = ours.public(case, weight, inputs, bench.facts, swiglu=swiglu)
        bound.call()
        error = check.relative_l2(bound.out, wanted)
    except (ChordError, RuntimeError) as refused:
        return Variant.refused(refused)
    return Variant(bound.call, error=error, schedule=str(bound.schedule))


def _peer_variants(bench: Bench, case: AnyCase, inputs: Inputs, wanted: torch.Tensor, peer: Peer) -> dict[str, Variant]:
    """The peer's default, and the fastest of its configurations that computes the right thing."""
    out = inputs.empty_output(case.layer.n)

    def variant(configuration: Configuration) -> Variant:
        try:
            call = peer.layer.call(configuration, inputs.x, out, inputs.peer_arguments(configuration.block_m))
            out.fill_(float("nan"))
            call()
            error = check.relative_l2(check.forget_idle(out, wanted), wanted)
        except RuntimeError as refused:
            return Variant.refused(refused, configuration=str(configuration))
        return Variant(call, error=error, configuration=str(configuration))

    try:
        pool = (peer.layer.default(case.layout, case.rows), *peer.pools[case.layout])
    except Exception as refused:  # a package of others may raise anything, and a row without its peer is still a row
        return {"peer_default": Variant.refused(refused)}
    tried = {str(index): variant(configuration) for index, configuration in enumerate(pool)}
    right = {name: one.call for name, one in tried.items() if one.right}
    if not right:
        return {"peer_default": tried["0"]}
    glance = interleave(right, bench.flush, GLANCE_ROUNDS)
    _, first = fastest(glance)
    near = {name: right[name] for name, spread in glance.items() if spread.median <= _GLANCE_FACTOR * first.median}
    best, _ = fastest(interleave(near, bench.flush, SWEEP_ROUNDS))
    return {"peer_default": tried["0"], "peer_best": Variant(tried[best].call, **tried[best].record, tried=len(tried))}
