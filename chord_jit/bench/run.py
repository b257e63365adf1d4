"""A whole run: compile, draw weights layer by layer, measure every case, and describe what it ran on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby

import torch

from chord_jit import device
from chord_jit.bench import kernels, measure, peers, reader, results, whole, workload
from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.dense import Dense
from chord_jit.bench.layers import Layer
from chord_jit.bench.power import Meter
from chord_jit.bench.timing import WriteFlush
from chord_jit.bench.whole_cases import WholeLayer
from chord_jit.device import DeviceFacts
from chord_jit.jit.warmup import warm_up

#: ``on_step(text, done, total)``: steps are cases; ``text`` says what runs now.
OnStep = Callable[[str, int, int], None]
#: ``on_row(result)``: the result as far as it has come, after each case.
OnRow = Callable[[dict], None]


@dataclass(frozen=True)
class Request:
    """What to run.

    ``flush``: evict L2 by ``write`` (cold and dirty, what counts) or ``read`` (cold and clean). ``command`` and
    ``commit`` are recorded as they are; ``override`` is a schedule that was forced, or empty.
    """

    case_set: str
    cases: Sequence[AnyCase]
    rounds: int = 100
    peer: bool = True
    energy: bool = True
    flush: str = "write"
    commit: str = "unknown"
    command: str = ""
    override: str = ""


def run(request: Request, on_step: OnStep, on_row: OnRow = lambda result: None) -> dict:
    """The result of ``request`` on the current CUDA device, ready for ``results.save``.

    What fails costs its own row and no other: the result's ``failures`` name it. Raises ``UnsupportedDeviceError`` without a
    GPU.
    """
    index = torch.cuda.current_device() if device.present() else 0
    facts = device.facts(index)
    place = torch.device("cuda", index)
    meter, seed = Meter(place), secrets.randbits(62)
    result = _opening(request, facts, meter, seed)
    on_step("compiling", 0, len(request.cases))
    report = warm_up(kernels.specs(request.cases, facts))
    result["failures"] += [f"{spec} does not compile: {error.rule}" for spec, error in report.errors]
    generator = torch.Generator(place).manual_seed(seed)
    flush = WriteFlush(place) if request.flush == "write" else reader.read_flush(place)
    dense = Dense(generator) if any(case.multiplies for case in request.cases) else None
    bench = measure.Bench(facts, generator, flush, meter, request.rounds, request.energy, dense)
    for layer, cases in groupby(request.cases, key=lambda case: case.layer):
        try:
            _layer(request, bench, layer, list(cases), result, on_step, on_row)
        except Exception as failed:  # other layers are worth their time, and what was measured is worth keeping
            result["failures"].append(f"{layer.name} failed: {_line(failed)}")
        on_row(result)
    return result


def _opening(request: Request, facts: DeviceFacts, meter: Meter, seed: int) -> dict:
    """The result before the first case."""
    result = {
        "schema": results.SCHEMA,
        "case_set": request.case_set,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": facts.name,
        "facts": asdict(facts),
        "clocks": meter.facts(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "peer": {"name": peers.NAME, "version": peers.version()} if request.peer else None,
        "commit": request.commit,
        "command": request.command,
        "override": request.override,
        "value_seed": seed,
        "rounds": request.rounds,
        "flush": request.flush,
        "reader_bar": None,
        "failures": [],
        "rows": [],
    }
    return {**result, "kernels_hash": results.kernels_hash(result)}


def _layer(
    request: Request, bench: measure.Bench, layer: Layer | WholeLayer, cases: list[AnyCase], result: dict, on_step: OnStep, on_row: OnRow
) -> None:
    """Measure every case of one layer into ``result``."""

    def step(text: str) -> None:
        on_step(text, len(result["rows"]), len(request.cases))

    prepare = _whole if isinstance(layer, WholeLayer) else _projection
    measured = prepare(request, bench, layer, cases, result, step)
    for case in cases:
        step(case.name)
        try:
            result["rows"].append(measured(case))
        except Exception as failed:  # the next case may do better, and what was measured is worth keeping
            result["failures"].append(f"{case.name} failed: {_line(failed)}")
            continue
        result["kernels_hash"] = results.kernels_hash(result)
        on_row(result)
    del measured
    torch.cuda.empty_cache()


def _projection(
    request: Request, bench: measure.Bench, layer: Layer, cases: list[AnyCase], result: dict, step: Callable[[str], None]
) -> Callable[[AnyCase], dict]:
    """Weights of one projection, and what makes a row of a case on them."""
    step(f"{layer.name}: drawing and packing weights")
    weights = workload.weights(layer, bench.generator)
    result["reader_bar"] = result["reader_bar"] or measure.reader_bar(bench, weights.plain)
    peer = None
    if request.peer:
        step(f"{layer.name}: compiling the peer's configurations")
        try:
            peer = measure.Peer.of(peers.Humming(layer, weights.words, weights.scale), {case.layout for case in cases})
        except Exception as failed:  # a package of others may raise anything; our own times stand without it
            result["failures"].append(f"{layer.name}: no peer: {_line(failed)}")
    return lambda case: measure.measure(bench, case, weights, peer)


def _whole(
    request: Request, bench: measure.Bench, layer: WholeLayer, cases: list[AnyCase], result: dict, step: Callable[[str], None]
) -> Callable[[AnyCase], dict]:
    """The same for whole layers."""
    step(f"{layer.name}: drawing and packing weights of {whole.LAYERS} layers, and the peer's configurations")
    weights = whole.weights(cases, bench.generator, result["failures"], peer=request.peer)
    result["reader_bar"] = result["reader_bar"] or measure.reader_bar(bench, weights.ours[0].weights.gate_up)
    return lambda case: whole.measure(bench, case, weights)


def _line(failed: Exception) -> str:
    return f"{type(failed).__name__}: {' '.join(str(failed).split())[:300]}"
