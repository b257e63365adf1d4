"""The typed ``CHORD_*`` variables, and the only reader of the environment.

The environment is read once, at the first ``read``; a warm call therefore costs no look-up. ``refresh`` reads it
again, and ``scope`` overrides values for a block (tests, tuners). Both change ``generation``, which memoised choices
carry in their keys or through ``until_changed``. ``docs/env.md`` is generated from ``KNOBS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from chord_jit.errors import OverrideError

Made = TypeVar("Made")


@dataclass(frozen=True)
class Knob:
    """One variable: its name, parser, default, group and one line of documentation."""

    name: str
    parse: Callable[[str], object]
    default: object
    group: str
    doc: str

    def value(self, text: str | None) -> object:
        """The parsed value of ``text``, or the default where it is unset or blank. Raises ``OverrideError``."""
        if text is None or not text.strip():
            return self.default
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise OverrideError(
                f"read {self.name}", str(error), {self.name: repr(text)}, f"unset {self.name} or give it a valid value"
            ) from None


def _integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be an integer") from None
        if value < least:
            raise ValueError(f"must be at least {least}")
        return value

    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return text

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not value > 0:
        raise ValueError("must be above zero")
    return value


def _paths(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(os.pathsep) if part.strip())


def _switch(text: str) -> int:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return int(text)


def _bytes(text: str) -> int:
    digits, unit = (text[:-1], text[-1]) if text[-1] in "KMGT" else (text, "")
    if not digits.isdecimal():
        raise ValueError("must be a number of bytes, with K, M, G or T for powers of 1024; 0 for no limit")
    return int(digits) << 10 * " KMGT".index(unit or " ")


KNOBS: tuple[Knob, ...] = (
    Knob("CHORD_CACHE_DIR", str, None, "cache", "Folder of the cubin cache; entries lie in a versioned subfolder of their own."),
    Knob("CHORD_CACHE_MAX_BYTES", _bytes, 1 << 30, "cache",
         "Size of the user's cache above which the least recently used entries go; K, M, G, T are powers of 1024, 0 is no limit."),
    Knob("CHORD_CACHE_SHARED", _paths, None, "cache",
         "Cache folders that are read after the user's and never written, as a path list in the order of the search."),
    Knob("CHORD_PREBUILT", _paths, None, "cache",
         "Folders of prebuilt kernels that are read after the shared ones and never written, as a path list."),
    Knob("CHORD_CACHE_TRUST_SHARED", _switch, 0, "cache",
         "1: load from shared and prebuilt folders that belong to other users or that others can write."),
    Knob("CHORD_LOCK_DIR", str, None, "cache",
         "Node-local folder of the compile locks; default: XDG_RUNTIME_DIR, else the temporary folder."),
    Knob("XDG_RUNTIME_DIR", str, None, "cache",
         "The user's node-local runtime folder, where the compile locks lie unless CHORD_LOCK_DIR is set."),
    Knob("CHORD_LOCK_TIMEOUT", _seconds, 300.0, "cache",
         "Seconds to wait for another process that compiles the same kernel; then compile privately."),
    Knob("CHORD_COMPILER", _choice("nvrtc", "nvcc"), "nvrtc", "compiler", "Compiler of cold kernels: nvrtc (default) or nvcc."),
    Knob("CHORD_NVCC", str, None, "compiler", "Path of nvcc when CHORD_COMPILER=nvcc; default: CUDA_HOME/bin, then PATH."),
    Knob("CUDA_HOME", str, None, "compiler", "Folder of a CUDA toolkit, searched for nvcc and for CUDA headers after the wheels."),
    Knob("CHORD_CUTLASS_DIR", str, None, "compiler", "Folder that holds cute/ and cutlass/; default: the nvidia-cutlass wheel."),
    Knob("CHORD_W4A16_BM", _integer(1), None, "schedule", "Token tile (rows per block) of W4A16 kernels."),
    Knob("CHORD_W4A16_BN", _integer(1), None, "schedule", "Output tile of W4A16 kernels."),
    Knob("CHORD_W4A16_BK", _integer(1), None, "schedule", "K extent of one stage of W4A16 kernels."),
    Knob("CHORD_W4A16_CM", _integer(1), None, "schedule", "Cluster size along tokens."),
    Knob("CHORD_W4A16_CN", _integer(1), None, "schedule", "Cluster size along outputs."),
    Knob("CHORD_W4A16_STAGES", _integer(1), None, "schedule", "Stages of the shared-memory ring."),
    Knob("CHORD_W4A16_SPLIT", _integer(1), None, "schedule", "CTAs of one cluster that share K of an output tile."),
    Knob("CHORD_W4A16_CTAS", _integer(1), None, "schedule", "Resident CTAs per SM."),
    Knob("CHORD_W4A16_DEQUANT", _choice("subnormal", "magic", "scaled"), None, "numerics",
         "Dequantisation of the m16n8k16 kernel; default: by architecture."),
    Knob("CHORD_CAPTURE_SLOTS", _integer(1), 32768, "launch", "Streams and captured launch sites of one device (192 B each)."),
    Knob("CHORD_BACKEND", _choice("kernels", "reference"), "kernels", "tests and bring-up",
         "reference: calls over CPU tensors are computed in FP64 by chord_jit.reference; those on a GPU take kernels in any case."),
    Knob("CHORD_VLLM", _switch, 1, "integrations", "0: vLLM keeps all of its MoE layers on Humming, as without chord_jit."),
    Knob("CHORD_SM90_DECODE", _switch, None, "accepted, no longer needed",
         "Phase of an instance, 1 decode or 0 prefill: one packed weight serves both, and each call chooses its kernel."),
    Knob("CHORD_USE_GROUPED", _switch, None, "accepted, no longer needed",
         "1: grouped kernels; here contiguous, masked and indexed are calls of their own over the same packed weight."),
)

_BY_NAME = {knob.name: knob for knob in KNOBS}
_values: dict[str, object] | None = None
generation = 0


def read(name: str) -> object:
    """The value of one knob. Raises ``KeyError`` for an unknown name, ``OverrideError`` for a value that does not parse."""
    if _values is None:
        refresh()
    return _values[name]


def refresh() -> None:
    """Read the environment again."""
    _install({knob.name: knob.value(os.environ.get(knob.name)) for knob in KNOBS})


def child_environment(**replaced: str | None) -> dict[str, str]:
    """The environment for a child process: ours, with these variables replaced (``None``: removed)."""
    merged = {**os.environ, **replaced}
    return {name: value for name, value in merged.items() if value is not None}


def until_changed(memo: dict[Hashable, tuple[int, Made]], key: Hashable, make: Callable[..., Made], *given: object) -> Made:
    """What ``memo`` holds under ``key``: ``make(*given)``, made again once a knob has changed."""
    # Read once: a knob that another thread changes meanwhile is for the next call to hear.
    now, (then, made) = generation, memo.get(key, (None, None))
    if then != now:
        made = make(*given)
        memo[key] = now, made
    return made


@contextmanager
def scope(**overrides: str | None) -> Iterator[None]:
    """Within the block, the named knobs hold these texts (``None``: the default), parsed as the environment would be."""
    parsed = {name: _BY_NAME[name].value(text) for name, text in overrides.items()}
    if _values is None:
        refresh()
    before = _values
    _install({**before, **parsed})
    try:
        yield
    finally:
        _install(before)


def _install(values: dict[str, object]) -> None:
    global _values, generation
    _values = values
    generation += 1
