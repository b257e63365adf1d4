"""The cache key: what a cubin is a function of, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from chord_jit.jit import compiler, headers, schema, toolchain
from chord_jit.jit.render import render
from chord_jit.jit.spec import KernelSpec


@dataclass(frozen=True)
class Key:
    """``digest``: SHA-256 in hex. ``fields``: the same content in clear text, label to text. ``source``: the rendered source."""

    digest: str
    fields: Mapping[str, str]
    source: str


def key_of(spec: KernelSpec) -> Key:
    """The key of ``spec`` under the present toolchain.

    Guaranteed: equal on every machine and in every process where the rendered source, our headers that it reaches, the
    versions of compiler and toolchain headers, the options and the target are equal; folders, times of files, the
    environment and the order of hashes play no part. A machine without a compiler takes the pinned versions.
    Not guaranteed: that two toolchains with the same version numbers hold the same bytes.
    """
    source = render(spec)
    found = toolchain.discover()
    fields = {
        "key version": str(schema.KEY_VERSION),
        "stem": spec.stem,
        "config": "\n".join(f"{name}: {type(value).__name__} = {value}" for name, value in spec.config),
        "arch": spec.arch,
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "headers": "\n".join(f"{name} {digest}" for name, digest in headers.closure(source).items()),
        "compiler": found.kind,
        "compiler version": found.compiler.version,
        "flags": "\n".join(compiler.flags(found.kind, spec.arch)),
        "CUTLASS": found.cutlass.version,
        "CUDA headers": found.cuda_headers.version,
        "CUDA C++ core headers": found.cccl.version,
    }
    return Key(digest_of(fields), fields, source)


def digest_of(fields: Mapping[str, str]) -> str:
    """SHA-256 over the labelled fields in the order of their labels; every label and text carries its length in bytes."""
    total = hashlib.sha256()
    for label in sorted(fields):
        for part in (label.encode(), fields[label].encode()):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.hexdigest()
