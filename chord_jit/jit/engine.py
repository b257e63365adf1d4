"""From a spec to an entry, and from an entry to a kernel on a device."""

from __future__ import annotations

from chord_jit.errors import CompileError
from chord_jit.jit import compiler as compilers
from chord_jit.jit import counters, elf, report
from chord_jit.jit.entry import Entry
from chord_jit.jit.key import Key, key_of
from chord_jit.jit.spec import KernelSpec


def build(spec: KernelSpec) -> Entry:
    return _compile(spec, key_of(spec))


def _compile(spec: KernelSpec, key: Key) -> Entry:
    request = compilers.request(spec, key.source)
    result = compilers.current().compile(request)
    try:
        found = elf.kernels(result.cubin)
    except ValueError as error:
        raise CompileError(f"compile {spec}", "the compiler must give a cubin", {"output": str(error)}, "", result.log) from None
    if found.count(spec.symbol) != 1:
        raise CompileError(f"compile {spec}", "the cubin must hold the kernel once", {"kernel": spec.symbol, "found": found}, "", result.log)
    counters.add(compiles=1, compile_seconds=result.seconds)
    return Entry(result.cubin, spec.symbol, report.facts(result.log, spec.symbol), key.digest, "compiled")
