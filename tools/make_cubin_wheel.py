"""Builds a wheel of prebuilt kernels: with it chord_jit needs no compiler, no headers and no writable folder.

    python tools/make_cubin_wheel.py kimi-k2 --config CONFIG --ep 8 --arch sm_90a --out dist
    python tools/make_cubin_wheel.py kimi-k2 --list deployments.json --out dist

The list is JSON: {"archs": ["sm_90a"], "deployments": [{"config": "config.json", "ep": 8}, {"hidden": 7168, "intermediate": 2048,
"experts": 384, "top_k": 8, "tp": 8}]}. No GPU is needed. The same kernels give the same wheel, byte for byte.

The wheel holds no code: entries in the layout of a cache, below the namespace package that ``chord_jit.jit.roots`` looks into.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from chord_jit import device, knobs, plan  # noqa: E402
from chord_jit.cli.console import counting  # noqa: E402
from chord_jit.errors import ChordError, InputError, ToolchainError  # noqa: E402
from chord_jit.formats.model_config import read_json  # noqa: E402
from chord_jit.jit import layout, roots, schema, toolchain  # noqa: E402
from chord_jit.jit.store import stores  # noqa: E402
from chord_jit.schedules.deployment import Deployment  # noqa: E402
from chord_jit.version import VERSION  # noqa: E402

_ASKED = "build a wheel of kernels"
_SHAPE = ("hidden", "intermediate", "experts", "top_k")
#: The oldest time that a zip can hold: the wheel depends on its content alone.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def main(argv: list[str] | None = None) -> int:
    """0 when the wheel is made, 1 when a kernel failed, 2 when something is refused; no wheel is made then."""
    arguments = _parser().parse_args(argv)
    try:
        models, archs = _wanted(arguments)
        # What somebody tries out in this shell must not steer what everybody gets.
        with knobs.scope(**{knob.name: None for knob in knobs.KNOBS if knob.group in ("schedule", "numerics", "compiler")}):
            _require_pinned()
            contents = _built(models, archs, arguments.jobs)
        if contents is None:
            return 1
        print(_written(arguments.name, contents, models, archs, arguments.out))
        return 0
    except ChordError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="what the wheel is for: it becomes chord-jit-cubins-NAME")
    parser.add_argument("--config", help="a model's config.json, or the folder that holds it")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--arch", nargs="+", choices=sorted(device.TARGETS), default=["sm_90a"])
    parser.add_argument("--list", type=Path, help="several deployments, as JSON")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--jobs", type=int)
    return parser


def _wanted(arguments: argparse.Namespace) -> tuple[list[Deployment], list[str]]:
    if not re.fullmatch(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", arguments.name):
        raise InputError(_ASKED, "a name has lower-case letters, digits and dashes", {"name": arguments.name}, "choose another name")
    if (arguments.config is None) == (arguments.list is None):
        raise InputError(_ASKED, "exactly one of --config and --list must be given", {}, "see --help")
    if arguments.config is not None:
        return [plan.deployment_of(arguments.config, tp=arguments.tp, ep=arguments.ep)], arguments.arch
    content = read_json(arguments.list)
    try:
        archs, models = content["archs"], [_model(each, arguments.list.parent) for each in content["deployments"]]
        if not models or not archs or not set(archs) <= set(device.TARGETS):
            raise ValueError(f"archs {archs} of {sorted(device.TARGETS)}, {len(models)} deployments")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ChordError):
            raise
        raise InputError(_ASKED, "the list must be as in --help", {"file": arguments.list, "problem": repr(error)}, "correct it") from None
    return models, list(archs)


def _model(each: Mapping, folder: Path) -> Deployment:
    ranks = {name: each[name] for name in ("tp", "ep") if name in each}
    if "config" in each:
        return plan.deployment_of(folder / each["config"], **ranks)
    return Deployment(*(int(each[name]) for name in _SHAPE), **ranks)


def _require_pinned() -> None:
    """A machine without a compiler asks for kernels of the pinned toolchain, so others would never be found there."""
    found = toolchain.discover()
    pins = (schema.PINNED_COMPILER, schema.PINNED_CUDA_HEADERS, schema.PINNED_CCCL, schema.PINNED_CUTLASS)
    versions = tuple(part.version for part in (found.compiler, found.cuda_headers, found.cccl, found.cutlass))
    if versions != pins:
        raise ToolchainError(
            _ASKED, "the toolchain must be the one that chord_jit pins", {"found": ", ".join(versions), "pinned": ", ".join(pins)},
            "pip install ., in the checkout of chord_jit and in a fresh environment",
        )


def _built(models: list[Deployment], archs: list[str], jobs: int | None) -> dict[str, dict[str, bytes]] | None:
    contents: dict[str, dict[str, bytes]] = {}
    for model in models:
        found = plan.plan(model, [device.target(arch) for arch in archs])
        with counting(f"kernels of {model}") as progress:
            report = found.warm_up(jobs=jobs, progress=progress)
        sys.stderr.write(f"{report}\n")
        if report.failed:
            return None
        for digest in (one.digest for one in found.kernels):
            contents[digest] = next((store for store in stores() if store.find(digest)), stores()[0]).contents(digest)
    return contents


def _written(name: str, contents: Mapping[str, Mapping[str, bytes]], models: list[Deployment], archs: list[str], out: Path) -> Path:
    name = name.replace("-", "_")
    stem = f"chord_jit_cubins_{name}-{VERSION}"
    package = Path(roots.WHEELS) / name
    about = {"chord_jit": VERSION, "archs": archs, "deployments": [asdict(model) for model in models], "kernels": len(contents)}
    files = {str(package / schema.ABOUT): (json.dumps(about, indent=1, sort_keys=True) + "\n").encode()}
    for digest, parts in contents.items():
        folder = layout.folder_of(package / schema.STORE_FOLDER, digest)
        files |= {str(folder / part): content for part, content in parts.items()}
    metadata = (
        f"Metadata-Version: 2.1\nName: chord-jit-cubins-{name.replace('_', '-')}\nVersion: {VERSION}\n"
        f"Summary: Prebuilt kernels of chord-jit {VERSION} for {', '.join(archs)}\nLicense: Apache-2.0\n"
    )
    files[f"{stem}.dist-info/METADATA"] = metadata.encode()
    files[f"{stem}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: make_cubin_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={_hash(content)},{len(content)}" for path, content in sorted(files.items())]
    files[record] = "".join(f"{line}\n" for line in (*lines, f"{record},,")).encode()
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(files):
            member = zipfile.ZipInfo(path, _EPOCH)
            member.external_attr, member.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(member, files[path])
    return target


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    raise SystemExit(main())
