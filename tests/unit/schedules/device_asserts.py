"""Assertions that the device compiler checks over a kernel's header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from chord_jit import assets
from chord_jit.jit import compiler
from chord_jit.jit.render import config_struct
from chord_jit.jit.spec import KernelSpec


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


def size_asserts(kernel: str, index: int, spec: KernelSpec, shape: object, sizes: Mapping[str, str], name: str) -> list[str]:
    """That ``kernel`` with the fields of ``spec`` has the ``sizes`` (its name to the host's) of the host's ``shape``.

    Its ``Config`` lies in a namespace of its own, by ``index``. ``name``: what a failure is called.
    """
    kernel = f"chord::{kernel}<c{index}::Config>"
    lines = [f"namespace c{index} {{ {config_struct(spec)} }}"]
    return lines + [f'static_assert({kernel}::{theirs} == {getattr(shape, ours)}, "{name} {theirs}");' for theirs, ours in sizes.items()]


def register_asserts(kernel: str, index: int, consumers: int, ctas: int = 1) -> list[str]:
    """That what setmaxnreg asks for in a kernel of ``size_asserts`` is what the launch gave, or it waits for ever."""
    kernel = f"chord::{kernel}<c{index}::Config>"
    registers, pool = f"{kernel}::kConsumerRegisters", f"{kernel}::kEntryRegisters * {consumers + 1}"
    return [
        f"static_assert({registers} <= 256 && {registers} % 8 == 0);",  # setmaxnreg ends at 256
        f"static_assert({registers} * {consumers} + {kernel}::kProducerRegisters <= {pool});",
        f"static_assert({pool} <= 65536 / 128 / {ctas});",
    ]


def with_field(spec: KernelSpec, name: str, step: int) -> KernelSpec:
    """``spec`` with one number of the host off by ``step``."""
    return replace(spec, config=tuple((key, value + step if key == name else value) for key, value in spec.config))


def forms_of_the_page(stem: str) -> list[list[str]]:
    """The rows of the table of forms on the kernel's page, cell by cell."""
    page = (Path(__file__).parents[3] / "docs" / "kernels" / f"{stem}.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| \d+x", line)]
    return [[cell.strip().replace(",", "") for cell in line.strip("| ").split("|")] for line in lines]
