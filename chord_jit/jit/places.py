"""Where the parts of a CUDA toolchain lie: wheels of both layouts, toolkits, the search path.

Every path is absolute, since a compiler runs in a folder of its own; a relative name counts from where the process is now.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

#: The wheels' folders below ``nvidia/``: CUDA 13 shares one, CUDA 12 has one for each component.
_COMPONENTS = ("cu13", "cuda_runtime", "cuda_nvcc", "cuda_cccl", "cuda_nvrtc")
_DEFAULT_TOOLKIT = "/usr/local/cuda"
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)")


def toolkits(cuda_home: str | None) -> tuple[Path, ...]:
    """Toolkit folders to search: those of ``CUDA_HOME``, which may be a list with empty members, then the usual one."""
    named = [part.strip() for part in (cuda_home or "").split(os.pathsep)]
    return tuple(dict.fromkeys(Path(part).absolute() for part in (*named, _DEFAULT_TOOLKIT) if part))


def wheel_includes() -> tuple[Path, ...]:
    """Header folders that wheels may have."""
    return tuple(path for component in _wheel_components() for path in (component / "include", component / "include" / "cccl"))


def wheel_libraries() -> tuple[Path, ...]:
    """Library folders that wheels may have."""
    return tuple(component / "lib" for component in _wheel_components())


def cuda_includes(roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Header folders that the toolkits ``roots`` may have."""
    plain = [folder for root in roots for folder in (root / "include", *sorted(root.glob("targets/*/include")))]
    return tuple(path for folder in plain for path in (folder, folder / "cccl"))


def toolkit_libraries(roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Library folders that the toolkits ``roots`` may have."""
    return tuple(folder for root in roots for folder in (root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))))


def cutlass_includes() -> tuple[Path, ...]:
    """Header folders of the nvidia-cutlass wheel. Its package is found, not imported: importing it pulls scipy."""
    return tuple(folder / "source" / "include" for folder in _package("cutlass_library"))


def nvcc_candidates(explicit: Path | None, roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Files that may be nvcc. A path given by the user is the only candidate: falling back would hide a typing error."""
    if explicit:
        return (explicit,)
    on_path = shutil.which("nvcc")
    return (*(root / "bin" / "nvcc" for root in roots), *((Path(on_path).absolute(),) if on_path else ()))


def nvdisasm_candidates(roots: tuple[Path, ...]) -> tuple[Path, ...]:
    """Files that may be nvdisasm: in its wheel, in the toolkits ``roots``, on the path."""
    on_path = shutil.which("nvdisasm")
    folders = (*(component / "bin" for component in _wheel_components()), *(root / "bin" for root in roots))
    return (*(folder / "nvdisasm" for folder in folders), *((Path(on_path).absolute(),) if on_path else ()))


def nvcc_version(path: Path) -> str:
    """Full version of nvcc, ``13.0.88``. A compiler that does not answer gets a version that no working one has."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unusable: {error}"
    found = re.search(r"\bV(\d+\.\d+\.\d+)", answer)
    return found.group(1) if found else f"unusable: {answer.strip()!r}"


def library_version(path: Path, wheel: str) -> str:
    """Full version of a CUDA library: in the file's own name in a toolkit, in the wheel's metadata otherwise."""
    found = re.search(r"\.so\.(\d+\.\d+\.\d+)$", path.resolve().name)
    if found:
        return found.group(1)
    try:
        return importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def first(folders: tuple[Path, ...], name: str) -> Path | None:
    """The first file ``name`` below one of ``folders``."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def macro(header: Path, name: str) -> str | None:
    """The integer that ``header`` defines ``name`` as. Read up to there: versions stand early in headers of a megabyte."""
    with open(header, encoding="utf-8", errors="replace") as lines:
        return next((found[2] for line in lines if (found := _DEFINE.match(line)) and found[1] == name), None)


def cuda_major(folder: Path) -> str | None:
    """Major version of the toolkit whose headers lie in ``folder``; None where it holds no ``cuda.h`` to tell."""
    header = folder / "cuda.h"
    version = macro(header, "CUDA_VERSION") if header.is_file() else None
    return str(int(version) // 1000) if version else None


def _wheel_components() -> tuple[Path, ...]:
    return tuple(folder / name for folder in _package("nvidia") for name in _COMPONENTS)


def _package(name: str) -> tuple[Path, ...]:
    spec = find_spec(name)
    return tuple(Path(folder).absolute() for folder in spec.submodule_search_locations or ()) if spec else ()
