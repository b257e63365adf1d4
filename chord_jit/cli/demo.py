"""``chord demo``: a small checkpoint in Kimi K2's layout, from the file to the checked result of one decode step."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from chord_jit import device
from chord_jit.cli.console import console, counting, write
from chord_jit.cli.kept import place_of, require_kept
from chord_jit.device import TARGETS, DeviceFacts
from chord_jit.errors import InputError


@dataclass(frozen=True)
class Check:
    """One line of the result. ``error``: relative L2 distance, or a count where ``bound``, the most it may be, is zero."""

    what: str
    shape: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("demo", help="the main job on a small model: checkpoint, packing, kernels, one checked decode step")
    for name, default, text in (
        ("hidden", 1024, "width of the residual stream"), ("intermediate", 512, "neurons of one expert"), ("experts", 8, "routed experts"),
        ("top-k", 2, "experts of a token"), ("tokens", 16, "tokens of the decode step"), ("seed", 0, "seed of weights and activations"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default {default})")
    parser.add_argument("--arch", choices=sorted(TARGETS), default="sm_90a", help="without a GPU: the target to compile for")
    parser.add_argument("--folder", type=Path, help="write the checkpoint here and keep it; default: a temporary folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Runs the whole path and prints a table. 0 when every check passed, else 1."""
    if arguments.tokens < 1:
        raise InputError("run the demo", "--tokens must be at least 1", {"tokens": arguments.tokens}, "name a positive number")
    if arguments.folder:
        return _run(arguments, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="chord-demo-") as folder:
        return _run(arguments, Path(folder) / "model")


def _run(arguments: argparse.Namespace, folder: Path) -> int:
    from chord_jit import api
    from chord_jit.cli import demo_layer
    from chord_jit.formats.checkpoint import load_moe_layer
    from chord_jit.formats.synthetic import write_checkpoint

    here = device.current()
    gpu, facts = here is not None, here or device.target(arguments.arch)
    with _step(f"writing a checkpoint of {arguments.experts} experts with compressed-tensors"):
        write_checkpoint(
            folder, hidden=arguments.hidden, intermediate=arguments.intermediate, experts=arguments.experts, top_k=arguments.top_k,
            layers=1, seed=arguments.seed, shards=2,
        )  # fmt: skip
    with counting("experts loaded and packed") as progress:
        weights = load_moe_layer(folder, 1, device="cuda" if gpu else "cpu", progress=progress)
    step = demo_layer.DecodeStep(weights, arguments.tokens, arguments.top_k, arguments.seed, facts)
    if not gpu:
        require_kept("run the demo without a GPU", step.specs())
    with counting("kernels built") as progress:
        report = api.warm_up(step.problems(), progress=progress)
    if report.failed:
        raise report.errors[0][1]
    with _step("packed weights against the checkpoint's own bytes"):
        wrong = demo_layer.differing_bits(folder, weights)
    with _step("one decode step, " + ("on the GPU" if gpu else "with the reference on the CPU")):
        errors = step.compare(step.run_kernels() if gpu else step.run_reference())
    checks = [Check("codes and scales = checkpoint", f"{arguments.experts} experts", float(wrong), 0.0)]
    checks += [Check(what, shape, error, bound) for (what, shape, bound), error in zip(step.stages(), errors, strict=True)]
    words = _plain_words(gpu, facts, report, {place_of(spec) for spec in step.specs()})
    _report(arguments, gpu, facts, checks, step.kernels(), report, words)
    return 0 if all(check.passed for check in checks) else 1


@contextmanager
def _step(title: str) -> Iterator[None]:
    """Says what is being done and how long it took."""
    sys.stderr.write(f"{title} ... ")
    sys.stderr.flush()
    started = time.perf_counter()
    yield
    sys.stderr.write(f"{time.perf_counter() - started:.1f} s\n")


def _plain_words(gpu: bool, facts: DeviceFacts, report, places: set[Path | None]) -> str:
    """``places``: the roots that have the kernels, None among them where one is in no root."""
    whole = None not in places
    kept = "they lie in " + ", ".join(sorted(map(str, places))) if whole else "not all could be kept"
    kernels = f"{report.compiled} compiled now, {report.hit} found; {kept}"
    if gpu:
        return f"Ran on {facts.name} ({facts.arch}). Kernels: {kernels}."
    brought = f"A machine with an {facts.name} would have to compile what was not kept."
    if whole:
        brought = (
            f"Brought to a machine with an {facts.name}, these entries are the ones it looks up: the keys are equal and nothing is "
            "compiled there."
        )
    return (
        "This machine has no GPU that chord_jit has kernels for, so no kernel ran. The kernels were compiled for "
        f"{facts.arch} ({kernels}). {brought} The numbers above were computed with chord_jit.reference, rounded to BF16 where the "
        "kernels round."
    )


def _report(
    arguments: argparse.Namespace, gpu: bool, facts: DeviceFacts, checks: list[Check], kernels: list[dict], report, words: str
) -> None:
    if arguments.json:
        checked = [{**asdict(check), "passed": check.passed} for check in checks]
        outcome = {"arch": facts.arch, "gpu": gpu, "compiled": report.compiled, "hit": report.hit}
        write(json.dumps({**outcome, "kernels": kernels, "checks": checked, "note": words}, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    built = Table(title="Kernels", title_justify="left")
    for column in kernels[0]:
        built.add_column(column, overflow="fold")
    for kernel in kernels:
        built.add_row(*map(str, kernel.values()))
    results = Table(title="One decode step against FP64", title_justify="left")
    for column in ("what", "shape", "error", "at most", "verdict"):
        results.add_column(column, overflow="fold")
    for check in checks:
        verdict = Text("ok", style="green") if check.passed else Text("too far", style="bold red")
        error, bound = (f"{check.error:.2e}", f"{check.bound:.1e}") if check.bound else (f"{check.error:.0f} differ", "0 differ")
        results.add_row(check.what, check.shape, error, bound, verdict)
    out = console()
    out.print(built, results)
    out.print(words)
