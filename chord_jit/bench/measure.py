"""One case: check, then time in turns, then energy and host time; one JSON row comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

from chord_jit.bench import check, ours, targets, workload
from chord_jit.bench.cases import Case
from chord_jit.bench.host import host_time
from chord_jit.bench.peers import Configuration, Humming
from chord_jit.bench.power import Meter
from chord_jit.bench.reader import FORMS, Reader
from chord_jit.bench.timing import Spread, interleave
from chord_jit.bench.workload import Inputs, Weights
from chord_jit.device import DeviceFacts
from chord_jit.formats.w4a16 import PackedW4A16

_SWEEP_ROUNDS = 16
_SETTLE_SECONDS = 1.0
_READER_BAR_ROUNDS = 60
#: Variants whose energy is worth the better part of a second each.
_ENERGY = ("reader", "ours", "ours_swiglu", "peer_best")


@dataclass(frozen=True, eq=False)
class Peer:
    """The peer's copy of the layer at hand and everything its heuristic ever picks for it."""

    layer: Humming
    pool: list[Configuration]


@dataclass(frozen=True, eq=False)
class Bench:
    """What every case of a run shares. ``flush`` evicts L2; ``energy`` asks for the sustained loops."""

    facts: DeviceFacts
    generator: torch.Generator
    flush: Callable[[], None]
    meter: Meter
    rounds: int
    energy: bool


class _Variant:
    """A call that takes part, and what is known of it so far."""

    def __init__(self, call: Callable[[], object], **known):
        self.call, self.record = call, {"us": None, **known}

    @property
    def right(self) -> bool:
        return self.record["error"] <= targets.WRONG_ABOVE


def reader_bar(bench: Bench, packed: PackedW4A16) -> dict | None:
    """The best reader at 760 MB, which a run must bring up to speed; ``None`` where the weight is smaller."""
    experts = round(targets.READER_BAR_BYTES / packed.data[0].numel())
    if experts > packed.experts:
        return None
    readers = _readers(packed, tuple(range(experts)))
    form, us = _fastest(interleave(readers, bench.flush, _READER_BAR_ROUNDS))
    return {"bytes": readers[form].bytes, "us": us.median, "form": form}


def measure(bench: Bench, case: Case, weights: Weights, peer: Peer | None) -> dict:
    """The row of ``case``. Whatever computes a wrong result keeps its error and gets no time."""
    inputs = workload.inputs(case, bench.generator)
    readers = _readers(weights.plain, inputs.active)
    for reader in readers.values():
        reader.check()
    wanted = check.exact(weights.plain, inputs, swiglu=False)
    variants = {"ours": _ours(bench, case, weights.plain, inputs, wanted, swiglu=False)}
    if weights.fused is not None:
        fused = check.exact(weights.fused, inputs, swiglu=True)
        variants["ours_swiglu"] = _ours(bench, case, weights.fused, inputs, fused, swiglu=True)
    host = host_time(variants["ours"].call)
    if peer is not None:
        variants |= _peer_variants(bench, case, inputs, wanted, peer)
    right = {name: variant.call for name, variant in variants.items() if variant.right}
    forms = interleave(readers, bench.flush, _SWEEP_ROUNDS)
    form, _ = _fastest(forms)
    variants["reader"] = _Variant(readers[form], form=form)
    # Only the best reader takes turns with the kernels: seven readers among them would cool the GPU for everybody.
    times = interleave({"reader": readers[form], **right}, bench.flush, bench.rounds, _SETTLE_SECONDS)
    for name in ("reader", *right):
        record = variants[name].record
        record["us"] = asdict(times[name])
        if bench.energy and name in _ENERGY:
            record["sustained"] = asdict(bench.meter.sustained(variants[name].call))
    return {
        **_identity(case),
        "variants": {name: variant.record for name, variant in variants.items()},
        "reader_forms": {name: spread.median for name, spread in forms.items()},
        "host_us": asdict(host),
    }


def _identity(case: Case) -> dict:
    layer, draw = case.layer, case.draw
    return {
        "case": case.name, "layer": layer.name, "source": layer.source, "experts": layer.experts, "n": layer.n, "k": layer.k,
        "tokens": draw.tokens, "seed": draw.seed, "active": draw.active, "busiest": draw.busiest, "rows": case.rows, "bytes": case.bytes,
    }  # fmt: skip


def _readers(packed: PackedW4A16, active: tuple[int, ...]) -> dict[str, Reader]:
    return {form.name: Reader.of_weight(form, packed, active) for form in FORMS}


def _fastest(times: Mapping[str, Spread]) -> tuple[str, Spread]:
    name = min(times, key=lambda form: times[form].median)
    return name, times[name]


def _ours(bench: Bench, case: Case, weight: PackedW4A16, inputs: Inputs, wanted: torch.Tensor, *, swiglu: bool) -> _Variant:
    bound = ours.public(case, weight, inputs, bench.facts, swiglu=swiglu)
    bound.call()
    return _Variant(bound.call, error=check.relative_l2(bound.out, wanted), schedule=str(bound.schedule))


def _peer_variants(bench: Bench, case: Case, inputs: Inputs, wanted: torch.Tensor, peer: Peer) -> dict[str, _Variant]:
    """The peer's default, and the fastest of its configurations that computes the right thing."""
    out = inputs.empty_output(case.layer.n)

    def variant(configuration: Configuration) -> _Variant:
        call = peer.layer.call(configuration, inputs.x, inputs.topk_ids, out)
        out.fill_(float("nan"))
        try:
            call()
        except RuntimeError as refused:
            return _Variant(call, error=float("inf"), configuration=str(configuration), refused=str(refused)[:200])
        return _Variant(call, error=check.relative_l2(out, wanted), configuration=str(configuration))

    tried = {str(index): variant(configuration) for index, configuration in enumerate((peer.layer.default(case.rows), *peer.pool))}
    right = {name: one.call for name, one in tried.items() if one.right}
    if not right:
        return {"peer_default": tried["0"]}
    best, _ = _fastest(interleave(right, bench.flush, _SWEEP_ROUNDS))
    return {"peer_default": tried["0"], "peer_best": _Variant(tried[best].call, **tried[best].record, tried=len(tried))}
