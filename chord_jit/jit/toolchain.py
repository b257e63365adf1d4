"""What a cold kernel is compiled with: found once, described in full, never loaded.

Nothing here raises because something is absent: ``chord doctor`` and the cache key need an answer on every machine.
``Toolchain.require`` is where absence becomes an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from chord_jit import knobs
from chord_jit.errors import ToolchainError
from chord_jit.jit import places, schema


@dataclass(frozen=True)
class Part:
    """One thing that a compile needs.

    ``path``: where it is, or None. ``version``: its own, or the pinned one where it is absent. ``searched``: every
    place that was looked at, in order. ``remedy``: how to get it.
    """

    name: str
    path: Path | None
    version: str
    searched: tuple[str, ...]
    remedy: str


@dataclass(frozen=True)
class Toolchain:
    """The compiler (``kind``: nvrtc or nvcc) and the headers. ``include_dirs`` holds those that were found."""

    kind: str
    compiler: Part
    cuda_headers: Part
    crt: Part
    cccl: Part
    cutlass: Part

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.compiler, self.cuda_headers, self.crt, self.cccl, self.cutlass)

    @property
    def missing(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.path is None)

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(part.path for part in self.parts[1:] if part.path is not None))

    def require(self) -> None:
        """Raises ``ToolchainError`` that names each missing part, the places searched and the remedy."""
        if self.missing:
            raise ToolchainError(
                f"compile a kernel with {self.kind}", "the compiler and every header folder must be present: missing "
                + ", ".join(part.name for part in self.missing),
                {part.name: "searched " + ", ".join(part.searched) for part in self.missing},
                "; ".join(dict.fromkeys(part.remedy for part in self.missing)),
            )


def discover() -> Toolchain:
    """The toolchain that the knobs choose, probed once for each setting of them. Loads no library.

    Relative names count from where the process is at that moment, and keep their meaning when it goes elsewhere.
    """
    return _discover(*_settings())[0]


def unchanged() -> bool:
    """Whether another probe finds every part where ``discover`` found it, of the same version. Takes milliseconds; runs nvcc."""
    found, probe = _discover(*_settings())
    try:
        return [(part.path, part.version) for part in probe().parts] == [(part.path, part.version) for part in found.parts]
    except OSError:
        # A file went away under the look.
        return False


def _settings() -> tuple[str | None, ...]:
    return tuple(knobs.read(name) for name in ("CHORD_COMPILER", "CHORD_NVCC", "CUDA_HOME", "CHORD_CUTLASS_DIR"))


@lru_cache(maxsize=8)
def _discover(kind: str, nvcc: str | None, cuda_home: str | None, cutlass_dir: str | None) -> tuple[Toolchain, Callable[[], Toolchain]]:
    """What is found now, and the same look for later."""
    named = (Path(text).absolute() if text else None for text in (nvcc, cutlass_dir))
    probe = partial(_probe, kind, places.toolkits(cuda_home), *named)
    return probe(), probe


def _probe(kind: str, toolkits: tuple[Path, ...], nvcc: Path | None, cutlass_dir: Path | None) -> Toolchain:
    compiler = _nvcc(nvcc, toolkits) if kind == "nvcc" else _nvrtc(toolkits)
    major = compiler.version.partition(".")[0]
    own = (compiler.path.resolve().parent.parent,) if kind == "nvcc" and compiler.path else ()
    folders = places.cuda_includes(own) + places.wheel_includes() + places.cuda_includes(toolkits)

    def cuda(name: str, marker: str, wheel: str, pinned: str, macro: str | None = None) -> Part:
        path = next((folder for folder in folders if (folder / marker).is_file() and places.cuda_major(folder) in (major, None)), None)
        version = (places.macro(path / marker, macro) if path and macro else None) or pinned
        return Part(name, path, version, tuple(map(str, folders)), f'pip install "{wheel}"')

    return Toolchain(
        kind,
        compiler,
        cuda("CUDA headers", "cuda.h", "nvidia-cuda-runtime==13.0.96", schema.PINNED_CUDA_HEADERS, "CUDA_VERSION"),
        cuda("CUDA crt headers", "crt/host_defines.h", "nvidia-cuda-crt==13.0.88", schema.PINNED_COMPILER),
        cuda("CUDA C++ core headers", "cuda/std/__cccl/version.h", "nvidia-cuda-cccl==13.0.85", schema.PINNED_CCCL, "CCCL_VERSION"),
        _cutlass(cutlass_dir),
    )


def _nvrtc(toolkits: tuple[Path, ...]) -> Part:
    folders = places.wheel_libraries() + places.toolkit_libraries(toolkits)
    major = schema.PINNED_COMPILER.partition(".")[0]
    path = places.first(folders, f"libnvrtc.so.{major}")
    version = places.library_version(path, "nvidia-cuda-nvrtc") if path else schema.PINNED_COMPILER
    return Part("NVRTC", path, version, tuple(map(str, folders)), f'pip install "nvidia-cuda-nvrtc=={schema.PINNED_COMPILER}"')


def _nvcc(explicit: Path | None, toolkits: tuple[Path, ...]) -> Part:
    searched = places.nvcc_candidates(explicit, toolkits)
    path = next((place for place in searched if place.is_file()), None)
    version = places.nvcc_version(path) if path else schema.PINNED_COMPILER
    return Part(
        "nvcc", path, version, tuple(map(str, searched)),
        "install a CUDA toolkit and name it in CUDA_HOME or CHORD_NVCC, or unset CHORD_COMPILER to compile with NVRTC",
    )


def _cutlass(explicit: Path | None) -> Part:
    folders = (explicit,) if explicit else places.cutlass_includes()
    header = places.first(folders, "cutlass/version.h")
    numbers = [places.macro(header, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")] if header else []
    version = ".".join(numbers) if numbers and None not in numbers else schema.PINNED_CUTLASS
    return Part(
        "CUTLASS headers", header.parent.parent if header else None, version, tuple(map(str, folders)) or ("the package cutlass_library",),
        f'pip install "nvidia-cutlass=={schema.PINNED_CUTLASS}.0"',
    )
