"""A whole run: compile, draw weights layer by layer, measure every case, and describe what it ran on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import torch

from chord_jit import device
from chord_jit.bench import measure, ours, peers, reader, results, workload
from chord_jit.bench.cases import Case
from chord_jit.bench.power import Meter
from chord_jit.bench.timing import WriteFlush
from chord_jit.device import DeviceFacts
from chord_jit.errors import CompileError
from chord_jit.families.indexed import FAMILY
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import warm_up

#: ``on_step(text, done, total)``: steps are cases; ``text`` says what runs now.
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What to run.

    ``flush``: evict L2 by ``write`` (cold and dirty, what counts) or ``read`` (cold and clean). ``command`` and
    ``commit`` are recorded as they are; ``override`` is a schedule that was forced, or empty.
    """

    case_set: str
    cases: Sequence[Case]
    rounds: int = 100
    peer: bool = True
    energy: bool = True
    flush: str = "write"
    commit: str = "unknown"
    command: str = ""
    override: str = ""


def specs(cases: Sequence[Case], facts: DeviceFacts) -> list[KernelSpec]:
    """Every kernel of ours, readers included, that ``cases`` launch."""
    found = [form.spec(facts.arch) for form in reader.FORMS]
    for case in cases:
        for swiglu in (False, True)[: 1 + case.layer.gated]:
            found.append(FAMILY.spec(*ours.chosen(case, facts, swiglu=swiglu)))
    return found


def run(request: Request, on_step: OnStep) -> dict:
    """The result of ``request`` on the current CUDA device, ready for ``results.save``.

    Raises ``UnsupportedDeviceError`` without a GPU, ``CompileError`` where a kernel does not compile.
    """
    index = torch.cuda.current_device() if device.present() else 0
    facts = device.facts(index)
    total = len(request.cases)
    on_step("compiling", 0, total)
    report = warm_up(specs(request.cases, facts))
    if report.failed:
        raise CompileError("compile the kernels of a run", "every kernel must compile", {"failed": report.failed}, "see below", str(report))
    place = torch.device("cuda", index)
    seed = secrets.randbits(62)
    generator = torch.Generator(place).manual_seed(seed)
    meter = Meter(place)
    flush = WriteFlush(place) if request.flush == "write" else reader.read_flush(place)
    bench = measure.Bench(facts, generator, flush, meter, request.rounds, request.energy)
    rows: list[dict] = []
    bar = None
    for layer, cases in groupby(request.cases, key=lambda case: case.layer):
        on_step(f"{layer.name}: drawing and packing weights", len(rows), total)
        weights = workload.weights(layer, generator)
        bar = bar or measure.reader_bar(bench, weights.plain)
        peer = None
        if request.peer:
            on_step(f"{layer.name}: compiling the peer's configurations", len(rows), total)
            copy = peers.Humming(layer, weights.words, weights.scale)
            peer = measure.Peer(copy, copy.own_configurations())
        for case in cases:
            on_step(case.name, len(rows), total)
            rows.append(measure.measure(bench, case, weights, peer))
        del weights, peer
        torch.cuda.empty_cache()
    return {
        "schema": results.SCHEMA,
        "case_set": request.case_set,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": facts.name,
        "sms": facts.sms,
        "clocks": meter.facts(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "peer": {"name": peers.NAME, "version": peers.version()} if request.peer else None,
        "commit": request.commit,
        "command": request.command,
        "override": request.override,
        "tree_hash": results.tree_hash(),
        "value_seed": seed,
        "rounds": request.rounds,
        "flush": request.flush,
        "reader_bar": bar,
        "rows": rows,
    }
