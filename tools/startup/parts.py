"""One part of the start-up comparison, in a process of its own: python tools/startup/parts.py PART SETTINGS-JSON.

Times run from the first instruction of this file. The last line of standard output is JSON. Steps, in milliseconds: ``torch`` (its
import), ``cuda`` (a context and a first tiny tensor), ``import`` (of the library), ``prepare`` (the weights as the library wants them),
``first`` and ``second`` (a call until its result is there); ``harness`` and ``inputs`` are ours to make and not the library's.
"""

import time

START = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import asdict  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.startup.job import BLOCK, Data, Job  # noqa: E402

_LOOKUPS, _ROUNDS = 20_000, 5


class Steps:
    """Milliseconds of each step since the one before."""

    def __init__(self):
        self.ms: dict[str, float] = {}
        self._at = START

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.ms[name] = round((now - self._at) * 1e3, 3)
        self._at = now

    def cuda(self) -> None:
        """What every library waits for: torch, and CUDA's own start."""
        import torch

        self.done("torch")
        torch.cuda.init()
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        self.done("cuda")

    def calls(self, call: Callable[[], object]) -> None:
        """The first call and the second."""
        import torch

        for name in ("first", "second"):
            call()
            torch.cuda.synchronize()
            self.done(name)


def ours(settings: dict) -> dict:
    """``no_compiler``: everything that could compile is out of reach."""
    import torch

    steps, job = Steps(), Job(**settings["job"])
    steps.cuda()
    import chord_jit
    from chord_jit.jit import counters

    call = chord_jit.indexed
    steps.done("import")
    if settings.get("no_compiler"):
        hide_compilers()
    data = Data(job, "cuda")
    routing = chord_jit.align_blocks(data.ids, BLOCK, job.experts)
    torch.cuda.synchronize()
    steps.done("inputs")
    weight = chord_jit.pack_w4a16(data.words, data.scale)
    torch.cuda.synchronize()
    steps.done("prepare")
    steps.calls(lambda: call(data.x, weight, routing, out=data.out))
    return {"ms": steps.ms, "error": data.error(data.out), **asdict(counters.counters())}


def triton(settings: dict) -> dict:
    steps, job = Steps(), Job(**settings["job"])
    steps.cuda()
    from tools.startup import triton_gemm

    steps.done("import")
    data = Data(job, "cuda")
    blocks = data.blocks(BLOCK)
    steps.done("inputs")
    steps.done("prepare")
    steps.calls(lambda: triton_gemm.indexed(data.x, data.words, data.scale, *blocks, job.top_k, data.out))
    return {"ms": steps.ms, "error": data.error(data.out)}


def humming(settings: dict) -> dict:
    """Its default configuration, chosen in the first call as ours is; its own kernels for the weights are in ``prepare``."""
    import torch

    steps, job = Steps(), Job(**settings["job"])
    steps.cuda()
    from chord_jit.bench.peers import Humming

    steps.done("harness")
    import humming.kernel.humming
    import humming.layer
    import humming.schema
    import humming.tune  # noqa: F401

    steps.done("import")
    data = Data(job, "cuda")
    torch.cuda.synchronize()
    steps.done("inputs")
    layer = Humming(SimpleNamespace(experts=job.experts, n=job.n, k=job.k), data.words, data.scale)
    torch.cuda.synchronize()
    steps.done("prepare")
    bound: list[Callable[[], None]] = []

    def call() -> None:
        if not bound:
            configuration = layer.default("indexed", job.rows)
            ids, owners, padded = data.blocks(configuration.block_m)
            rows = dict(sorted_ids=ids, expert_ids=owners, num_tokens_padded=padded, top_k=job.top_k)
            bound.append(layer.call(configuration, data.x, data.out, rows))
        bound[0]()

    steps.calls(call)
    return {"ms": steps.ms, "error": data.error(data.out)}


def opening(settings: dict) -> dict:
    """The host's half of a first call, on any machine: choose, key, find and check; nothing is loaded to a device."""
    import torch  # noqa: F401

    steps, job = Steps(), Job(**settings["job"])
    steps.done("torch")
    import chord_jit
    from chord_jit import device
    from chord_jit.families.indexed import FAMILY
    from chord_jit.jit import engine

    chord_jit.indexed  # noqa: B018
    steps.done("import")
    problem = FAMILY.problem(device.target("sm_90a"), job.experts, job.n, job.k, job.rows / job.experts, block_m=BLOCK)
    entry = engine.build(FAMILY.spec(problem, FAMILY.schedule(problem)))
    steps.done("first")
    return {"ms": steps.ms, "origin": entry.origin}


def lookup(settings: dict) -> dict:
    """A warm lookup: microseconds to the schedule of a problem and to the handle of its kernel; audit events; system calls.

    Without a GPU the driver's part of the load is left out: a warm lookup never gets there.
    """
    import torch

    from chord_jit import device
    from chord_jit.families.indexed import FAMILY
    from chord_jit.jit import engine, loader

    job, on_gpu = Job(**settings["job"]), torch.cuda.is_available()
    if on_gpu:
        torch.cuda.init()
    else:
        loader.capturing, loader.load_library, loader.bind = (lambda device: False), (lambda entry: 1), loader.Kernel
    facts = device.current() or device.target("sm_90a")
    problem = FAMILY.problem(facts, job.experts, job.n, job.k, job.rows / job.experts, block_m=BLOCK)
    spec = FAMILY.spec(problem, FAMILY.schedule(problem))

    def resolve(rounds: int) -> None:
        for _ in range(rounds):
            FAMILY.schedule(problem)

    def handle(rounds: int) -> None:
        for _ in range(rounds):
            engine.load(spec, 0)

    def both(rounds: int) -> None:
        resolve(rounds)
        handle(rounds)

    both(1)
    events: list[str] = []
    sys.addaudithook(lambda event, _: events.append(event))
    both(1)
    seen = len(events)
    return {
        "on_gpu": on_gpu, "resolve_us": _quickest(resolve), "handle_us": _quickest(handle), "audit_events": seen,
        "system_calls": _system_calls(both),
    }  # fmt: skip


def _quickest(call: Callable[[int], None]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        call(_LOOKUPS)
        best = min(best, time.perf_counter() - started)
    return round(best / _LOOKUPS * 1e6, 3)


def _system_calls(call: Callable[[int], object]) -> object:
    """0 where a forked child that may only read and write outlives ``call``, ``some`` where it does not."""
    from chord_jit.jit import engine
    from tools.startup import strict

    kept = engine._engine

    def remembered(rounds: int) -> None:
        # A child forgets the kernels of its parent; a lookup makes no use of the device, so this one may remember.
        engine._engine = kept
        call(rounds)

    written, _ = strict.strictly(remembered, _LOOKUPS)
    return {strict.BEGUN + strict.ENDED: 0, strict.BEGUN: "some", strict.CANNOT: "unknown"}.get(written, "unknown")


def rank(settings: dict) -> dict:
    """One of several processes that start with nothing and want the same kernels, each in an order of its own."""
    import random

    from chord_jit.jit import counters, engine
    from chord_jit.jit.spec import KernelSpec

    specs = [KernelSpec(stem, tuple(map(tuple, config)), arch) for stem, config, arch in settings["specs"]]
    random.Random(settings["index"]).shuffle(specs)
    folder = Path(settings["folder"])
    (folder / f"ready.{settings['index']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.002)
    started = time.time()
    origins = [engine.build(spec).origin for spec in specs]
    return {"started": started, "ended": time.time(), "kernels": len(origins), **asdict(counters.counters())}


def hide_compilers() -> None:
    """From here on this process finds no toolchain and no NVRTC, whatever is installed."""
    from chord_jit.jit import places

    for package in ("nvidia", "cutlass_library", "cuda.bindings.nvrtc"):
        sys.modules[package] = None
    places.toolkits = lambda cuda_home: ()


PARTS = {part.__name__: part for part in (ours, triton, humming, opening, lookup, rank)}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
