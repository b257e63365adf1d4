"""Assertions that the device compiler checks over a kernel's header."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chord_jit import assets
from chord_jit.jit import compiler


def compile_asserts(stem: str, lines: Iterable[str]) -> None:
    """Compile a source that holds nothing but ``lines`` over the header of the kernel ``stem``. Raises ``CompileError``."""
    source = "\n".join([f'#include "chord/kernels/{stem}.cuh"', *lines, 'extern "C" __global__ void chord_asserts() {}'])
    compiler.current().compile(compiler.Request(source, "asserts.cu", "chord_asserts", "sm_90a", assets.folders("include")))


def order_asserts(struct: str, pointers: Mapping[str, str], numbers: Iterable[str], size: int, head: str = "") -> list[str]:
    """That ``struct`` holds ``head`` (an initialiser), these pointers (name to what they point at) and these ints, in this order.

    It is ``size`` bytes long: without padding, offsets follow the order in which an aggregate takes its members.
    """
    numbers = list(numbers)
    lines = [f"__device__ {kind} v{index};" for index, kind in enumerate(pointers.values())]
    values = [*(f"&v{index}" for index in range(len(pointers))), *map(str, range(100, 100 + len(numbers)))]
    lines.append(f"constexpr {struct} p{{{head}{', '.join(values)}}};")
    names = [*pointers, *numbers]
    lines += [f'static_assert(p.{name} == {value}, "{name}");' for name, value in zip(names, values, strict=True)]
    return [*lines, f"static_assert(sizeof(p) == {size});"]
