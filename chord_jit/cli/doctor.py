"""``chord doctor``: what this machine has, what is missing and how to get it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from chord_jit import assets, device, knobs
from chord_jit.errors import ChordError
from chord_jit.version import VERSION

_PACKAGES = ("torch", "cuda.bindings", "jinja2", "filelock", "platformdirs", "safetensors", "numpy", "rich")


@dataclass(frozen=True)
class Check:
    """One line of the report. ``state``: ``ok``, ``none`` (not there, and not needed here) or ``missing``."""

    name: str
    state: str
    found: str
    remedy: str = ""


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("doctor", help="say what was found, what is missing and how to get it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. 0 when cold kernels can be compiled and kept, 1 when something needed is missing."""
    checks = list(examine())
    missing = [check for check in checks if check.state == "missing"]
    if arguments.json:
        from chord_jit.cli.console import write

        write(json.dumps({"version": VERSION, "ok": not missing, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks, missing)
    return 1 if missing else 0


def examine() -> Iterator[Check]:
    """Every check, in the order in which a kernel needs them."""
    yield Check("Python", "ok", platform.python_version())
    packages = _packages()
    yield packages
    if packages.state == "missing":
        return
    yield _torch()
    yield from _gpu()
    yield from _toolchain()
    yield _own_files()
    yield _trial_compile()
    yield from _folders()
    yield _overrides()


def _packages() -> Check:
    """The packages that every other check imports."""
    missing = [name for name in _PACKAGES if not _importable(name)]
    if missing:
        remedy = "pip install ., in the checkout of chord_jit and in this environment"
        return Check("packages", "missing", "cannot import " + ", ".join(missing), remedy)
    return Check("packages", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in ("cuda-bindings", "numpy", "safetensors")))


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _torch() -> Check:
    import torch

    cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return Check("torch", "ok", f"{torch.__version__}, {cuda}")


def _gpu() -> Iterator[Check]:
    if not device.present():
        yield Check("GPU", "none", "no GPU that torch can use: kernels compile here for another machine and do not run")
        return
    import torch
    from cuda.bindings import driver

    status, version = driver.cuDriverGetVersion()
    yield Check("driver", "ok", f"CUDA {version // 1000}.{version % 1000 // 10}" if int(status) == 0 else status.name)
    for index in range(torch.cuda.device_count()):
        try:
            facts = device.facts(index)
            yield Check(f"GPU {index}", "ok", f"{facts.name}, {facts.arch}, {facts.sms} SMs")
        except ChordError as error:
            yield Check(f"GPU {index}", "none", f"{error.asked.removeprefix('run a kernel on ')}: no kernels for it", error.remedy)


def _toolchain() -> Iterator[Check]:
    from chord_jit.jit.toolchain import discover

    found = discover()
    for part in found.parts:
        if part.path is None:
            yield Check(part.name, "missing", "searched " + ", ".join(part.searched), part.remedy)
        else:
            yield Check(part.name, "ok", f"{part.version} in {part.path}")
    if found.kind != "nvcc":
        with knobs.scope(CHORD_COMPILER="nvcc"):
            nvcc = discover().compiler
        if nvcc.path:
            yield Check("nvcc", "ok", f"{nvcc.version} in {nvcc.path}, used with CHORD_COMPILER=nvcc")
        else:
            yield Check("nvcc", "none", "not found, and not needed with NVRTC")


def _own_files() -> Check:
    try:
        return Check("templates, headers", "ok", ", ".join(str(assets.folder(name)) for name in ("templates", "include")))
    except ChordError as error:
        return Check("templates, headers", "missing", str(error.values), error.remedy)


def _trial_compile() -> Check:
    """A compiler that is found can still fail to load or to run, so let it compile the smallest kernel."""
    from chord_jit.jit import compiler

    source = 'extern "C" __global__ void chord_trial(float* out) { out[threadIdx.x] = 1.0f; }\n'
    request = compiler.Request(source, "trial.cu", "chord_trial", "sm_90a", ())
    start = time.perf_counter()
    try:
        result = compiler.current().compile(request)
    except ChordError as error:
        return Check("trial compile", "missing", f"{error.asked}: {error.rule}", error.remedy)
    return Check("trial compile", "ok", f"sm_90a, {len(result.cubin)} bytes in {time.perf_counter() - start:.2f} s")


def _folders() -> Iterator[Check]:
    from chord_jit.jit import roots

    for name, folder, variable in (("cache", roots.cache_root(), "CHORD_CACHE_DIR"), ("locks", roots.lock_root(), "CHORD_LOCK_DIR")):
        problem = _unusable(folder)
        if problem:
            yield Check(name, "missing", problem, f"set {variable} to a folder that this user alone can write")
        else:
            yield Check(name, "ok", f"{folder}, writable" + (f", {_held(folder)}" if name == "cache" else ""))
    others = roots.in_order()[1:]
    for root in others:
        there = root.path.is_dir()
        told = f"{root.path}, {_held(root.path)}{_about(root.path)}" if there else f"{root.path} is not there"
        yield Check(f"{root.kind} kernels", "ok" if there else "none", told)
    if not others:
        yield Check("prebuilt kernels", "none", "no wheel, CHORD_PREBUILT or CHORD_CACHE_SHARED; not needed where kernels can be compiled")


def _held(root: Path) -> str:
    from chord_jit.jit import layout

    sizes = [layout.size_of(folder) for folder in layout.entry_folders(root)]
    return f"{len(sizes)} entries, {sum(sizes) / (1 << 20):.1f} MiB"


def _about(root: Path) -> str:
    """What a wheel of kernels says about itself; empty where nothing does."""
    from chord_jit.jit import schema

    try:
        about = json.loads((root.parent / schema.ABOUT).read_bytes())
        made_by, archs = about["chord_jit"], ", ".join(about["archs"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    other = "" if made_by == VERSION else ", another version than this one: kernels that changed since are not found there"
    return f", for {archs}, made by chord_jit {made_by}{other}"


def _unusable(folder: Path) -> str:
    """Why nothing can be kept in ``folder``, by the rules of the cache; empty where it can be. Makes nothing."""
    from chord_jit.jit import files

    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    try:
        if existing == folder:
            files.check_folder(folder)
    except (OSError, files.Untrusted) as problem:
        return str(problem)
    return "" if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _overrides() -> Check:
    changed = [f"{knob.name}={knobs.read(knob.name)}" for knob in knobs.KNOBS if knobs.read(knob.name) != knob.default]
    return Check("variables", "ok" if changed else "none", ", ".join(changed) or "all at their defaults")


def _show(checks: list[Check], missing: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    from chord_jit.cli.console import console

    style = {"ok": "green", "none": "yellow", "missing": "bold red"}
    table = Table(title=f"chord_jit {VERSION}", title_justify="left")
    for column in ("part", "state", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(check.name, Text(check.state, style=style[check.state]), check.found)
    out = console()
    out.print(table)
    for check in missing:
        out.print(Text("missing", style=style["missing"]), f"{check.name}: {check.remedy}", soft_wrap=True)
    if not missing:
        out.print("Cold kernels can be compiled and kept here.")
