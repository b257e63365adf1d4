"""Which kernels a warm-up wants, kept so that the next one need not choose them again.

Trusted: that the same code, tables and templates choose the same kernels for the same request. The name of a manifest is therefore
the SHA-256 of all of them by content, of the request, of the variables and of the toolchain's versions: nothing else can find it.
Not trusted: the disk. A manifest that does not match its own checksum, or that somebody else could have written, is not there;
and the kernels that it names are looked up and checked like any other. At worst a manifest costs what it saves.
Not guaranteed: that code and tables in memory are those of the files where the package's folder was swapped whole since its import.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from chord_jit import assets, knobs
from chord_jit.jit import files, toolchain
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.store import Store

_FOLDER, _VERSION, _MOST = "manifests", 1, 64
_PACKAGE = Path(__file__).resolve().parent.parent
_imported = time.time()


@dataclass(frozen=True)
class Wanted:
    """One kernel. ``digest``: of its key. ``schedule``: as text. ``problems``: how many of the request's problems it serves."""

    spec: KernelSpec
    digest: str
    schedule: str
    problems: int


def name_of(request: Mapping[str, object]) -> str | None:
    """The name that a manifest for ``request`` (plain JSON) has under the present code, variables and toolchain.

    None where this process has other code in memory, or where a file cannot be read: one may go away meanwhile.
    """
    found = toolchain.discover()
    try:
        sources = _sources()
        if _edited(sources):
            return None
        content = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sources}
    except OSError:
        return None
    steering = {
        "request": request,
        "variables": {knob.name: knobs.read(knob.name) for knob in knobs.KNOBS if knob.group != "cache"},
        "toolchain": [found.kind, *(part.version for part in found.parts)],
        "files": content,
    }
    return hashlib.sha256(_text(steering)).hexdigest()


def read(store: Store, name: str) -> tuple[Wanted, ...] | None:
    """The kernels of the manifest ``name``; None where there is none to be trusted."""
    folder = store.root / _FOLDER
    try:
        for level in (store.root, folder):
            files.check_folder(level)
        body = json.loads(files.read(folder / f"{name}.json"))
        claimed = body.pop("sha256")
        if body["version"] != _VERSION or body["name"] != name or hashlib.sha256(_text(body)).hexdigest() != claimed:
            return None
        return tuple(_wanted(kernel) for kernel in body["kernels"])
    except (OSError, files.Untrusted, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def write(store: Store, name: str, kernels: Iterable[Wanted]) -> None:
    """Keep ``kernels`` under ``name``, whole or not at all; where the disk refuses they are not kept. The oldest manifests go."""
    body = {"version": _VERSION, "name": name, "kernels": [asdict(kernel) for kernel in kernels]}
    folder = store.root / _FOLDER
    staging = folder / f".{uuid.uuid4().hex}"
    with suppress(OSError, files.Untrusted):
        if _edited(_sources()):
            return
        files.private_folder(store.root)
        files.private_folder(folder)
        try:
            files.write(staging, _text({**body, "sha256": hashlib.sha256(_text(body)).hexdigest()}))
            staging.replace(folder / f"{name}.json")
        finally:
            staging.unlink(missing_ok=True)
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            old.unlink(missing_ok=True)


def _edited(sources: Iterable[tuple[str, Path]]) -> bool:
    """Whether code and tables in memory may be older than their files: then they do not choose what the content says."""
    # The time of the change, which no tool can set back.
    return any(path.stat().st_ctime > _imported for _, path in sources)


def _wanted(kernel: Mapping) -> Wanted:
    spec = kernel["spec"]
    config = tuple((str(name), value) for name, value in spec["config"])
    return Wanted(KernelSpec(spec["stem"], config, spec["arch"]), kernel["digest"], kernel["schedule"], kernel["problems"])


def _sources() -> list[tuple[str, Path]]:
    """Name and path of every file that can steer which kernels are chosen and what their keys are."""
    places = [("package", _PACKAGE), *((kind, folder) for kind in ("templates", "include") for folder in assets.folders(kind))]
    # Bytecode and hidden files, such as an editor's, come and go while others run, and are made of what is here.
    found = [
        (f"{index} {kind} {path.relative_to(folder)}", path)
        for index, (kind, folder) in enumerate(places)
        for path in folder.rglob("*")
        if path.parent.name != "__pycache__" and not path.name.startswith(".") and path.is_file()
    ]
    return sorted(found)


def _text(body: Mapping[str, object]) -> bytes:
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
