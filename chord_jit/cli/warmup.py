"""``chord warmup CONFIG``: compile every kernel that a deployment of a model can ask for, on a machine with or without a GPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace

from chord_jit import device
from chord_jit.cli.console import console, counting, write
from chord_jit.device import TARGETS, DeviceFacts
from chord_jit.errors import InputError


@dataclass(frozen=True)
class Wanted:
    """One kernel of the deployment. ``problems``: how many of the deployment's problems it serves."""

    arch: str
    schedule: str
    fields: str
    problems: int


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
    from chord_jit import api
    from chord_jit.families.base import deployment_problems
    from chord_jit.formats.model_config import read_model_shape, require_int4_group32
    from chord_jit.schedules.deployment import Deployment

    for name in ("jobs", "sms"):
        _positive(name, getattr(arguments, name))
    require_int4_group32(arguments.config)
    shape = read_model_shape(arguments.config)
    model = Deployment(shape.hidden, shape.moe_intermediate, shape.experts, shape.top_k, tp=arguments.tp, ep=arguments.ep)
    problems = [problem for facts in _facts(arguments) for problem in deployment_problems(model, facts)]
    kernels = _kernels(problems)
    with counting("kernels") as progress:
        report = api.warm_up(problems, jobs=arguments.jobs, progress=progress)
    if arguments.json:
        outcome = {"compiled": report.compiled, "hit": report.hit, "failed": report.failed, "seconds": round(report.seconds, 3)}
        errors = [f"{spec}\n{error}" for spec, error in report.errors]
        listed = [asdict(kernel) for kernel in kernels]
        write(json.dumps({"model": asdict(model), **outcome, "kernels": listed, "errors": errors}, indent=2))
    else:
        _show(kernels)
        console().print(str(report), markup=False, soft_wrap=True)
    return 1 if report.failed else 0


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError("warm up a deployment", f"--{name} must be at least 1", {name: value}, f"leave --{name} out for the default")


def _facts(arguments: argparse.Namespace) -> list[DeviceFacts]:
    """The GPUs to compile for. The SM count steers the choice of schedules alone: a cubin serves every one."""
    here = device.current() or device.target("sm_90a")
    chosen = [here if arch == here.arch else device.target(arch) for arch in arguments.arch or (here.arch,)]
    return [replace(facts, sms=arguments.sms) for facts in chosen] if arguments.sms else chosen


def _kernels(problems: list[object]) -> list[Wanted]:
    from chord_jit.families.base import family

    found: dict[object, Wanted] = {}
    for problem in problems:
        owner = family(problem.family)
        schedule = owner.schedule(problem)
        spec = owner.spec(problem, schedule)
        fields = " ".join(f"{name}={value}" for name, value in spec.config)
        before = found.get(spec, Wanted(spec.arch, str(schedule), fields, 0))
        found[spec] = replace(before, problems=before.problems + 1)
    return list(found.values())


def _show(kernels: list[Wanted]) -> None:
    from rich.table import Table

    table = Table(title=f"{len(kernels)} kernels", title_justify="left")
    for column in ("target", "schedule", "compile-time fields", "problems"):
        table.add_column(column, overflow="fold")
    for kernel in kernels:
        table.add_row(kernel.arch, kernel.schedule, kernel.fields, str(kernel.problems))
    console().print(table)
