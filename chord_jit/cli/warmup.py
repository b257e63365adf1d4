"""``chord warmup CONFIG``: compile every kernel that a deployment of a model can ask for, on a machine with or without a GPU."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from chord_jit import device
from chord_jit.cli.console import console, counting, write
from chord_jit.cli.kept import require_kept
from chord_jit.device import TARGETS, DeviceFacts
from chord_jit.errors import InputError

if TYPE_CHECKING:
    from chord_jit.jit.manifest import Wanted


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("warmup", help="compile every kernel of a deployment before serving")
    parser.add_argument("config", metavar="CONFIG", help="a model's config.json, or the folder that holds it")
    parser.add_argument("--arch", nargs="+", choices=sorted(TARGETS), help="targets; default: this machine's GPU if it is one, else sm_90a")
    parser.add_argument("--sms", type=int, help="SM count of the GPU that will serve; default: this one's, else the target's usual one")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each expert's neurons")
    parser.add_argument("--ep", type=int, default=1, help="ranks that share the experts")
    parser.add_argument("--jobs", type=int, help="compiles at a time; default: all cores")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compiles, and prints what was compiled, what was found and what failed. 1 when a kernel failed."""
    from rich.text import Text

    from chord_jit import plan

    for name in ("jobs", "sms"):
        _positive(name, getattr(arguments, name))
    started = time.perf_counter()
    model = plan.deployment_of(arguments.config, tp=arguments.tp, ep=arguments.ep)
    targets = _facts(arguments)
    found = plan.plan(model, targets)
    chosen = time.perf_counter() - started
    require_kept("warm up a deployment", (one.spec for one in found.kernels))
    with counting("kernels") as progress:
        report = found.warm_up(jobs=arguments.jobs, progress=progress)
    numbers = {facts.arch: sum(one.spec.arch == facts.arch for one in found.kernels) for facts in targets}
    if arguments.json:
        outcome = {"compiled": report.compiled, "hit": report.hit, "failed": report.failed, "seconds": round(report.seconds, 3)}
        plan_facts = {"manifest": "found" if found.known else "new", "choosing_seconds": round(chosen, 3), "most": plan.MOST_KERNELS}
        errors = [f"{spec}\n{error}" for spec, error in report.errors]
        listed = [_row(one) for one in found.kernels]
        body = {"model": asdict(model), **outcome, **plan_facts, "per_target": numbers, "kernels": listed, "errors": errors}
        write(json.dumps(body, indent=2))
    else:
        _show(found.kernels)
        console().print(str(report), soft_wrap=True)
        how = "by the manifest of an earlier warm-up" if found.known else "anew"
        console().print(f"chosen {how} in {chosen:.3f} s", soft_wrap=True)
        for arch, number in numbers.items():
            told = [f"{arch}: {number} kernels, {plan.MOST_KERNELS} expected at most"]
            if number > plan.MOST_KERNELS:
                told.append(Text("(more: a cold start takes longer; please report this model)", style="bold red"))
            console().print(*told, soft_wrap=True)
    return 1 if report.failed else 0


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError("warm up a deployment", f"--{name} must be at least 1", {name: value}, f"leave --{name} out for the default")


def _facts(arguments: argparse.Namespace) -> list[DeviceFacts]:
    """The GPUs to compile for. The SM count steers the choice of schedules alone: a cubin serves every one."""
    here = device.current() or device.target("sm_90a")
    chosen = [here if arch == here.arch else device.target(arch) for arch in arguments.arch or (here.arch,)]
    return [replace(facts, sms=arguments.sms) for facts in chosen] if arguments.sms else chosen


def _row(one: Wanted) -> dict[str, object]:
    fields = " ".join(f"{name}={value}" for name, value in one.spec.config)
    return {"arch": one.spec.arch, "digest": one.digest, "schedule": one.schedule, "fields": fields, "problems": one.problems}


def _show(kernels: Sequence[Wanted]) -> None:
    from rich.table import Table

    table = Table(title=f"{len(kernels)} kernels", title_justify="left")
    for column in ("target", "schedule", "compile-time fields", "problems"):
        table.add_column(column, overflow="fold")
    for row in map(_row, kernels):
        table.add_row(row["arch"], row["schedule"], row["fields"], str(row["problems"]))
    console().print(table)
