"""From a kernel spec to CUDA source: one named ``Config`` struct, handed to a thin template."""

from __future__ import annotations

import re

from chord_jit import assets
from chord_jit.errors import InputError, InputTypeError
from chord_jit.jit.spec import KernelSpec

_SUFFIX = ".cu.j2"
_NAME = re.compile(r"\{\{ ([\w.]+) \}\}")


def render(spec: KernelSpec) -> str:
    """The source of ``spec``: a pure function of its fields and the template's text.

    The template sees ``spec``, ``symbol`` and ``config_struct``. Raises ``InputError`` for an unknown stem and for an
    integer that no C++ type holds, ``InputTypeError`` for a field that is neither bool, int nor str.
    """
    template, struct = _template(spec.stem), config_struct(spec)
    known = {"config_struct": struct, "symbol": spec.symbol, "spec.stem": spec.stem, "spec.arch": spec.arch}
    pieces = _NAME.split(template)
    # A template that only names these means the same to jinja2, whose import takes longer than the rest of a hit.
    if known.keys() >= set(pieces[1::2]) and not any(mark in text for text in pieces[::2] for mark in ("{{", "{%", "{#")):
        return "".join(known[piece] if index % 2 else piece for index, piece in enumerate(pieces))
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(template).render(spec=spec, symbol=spec.symbol, config_struct=struct)


def config_struct(spec: KernelSpec) -> str:
    """``struct Config { ... };`` with the fields of ``spec.config`` in their order."""
    lines = [f"    static constexpr {_declaration(spec, name, value)};" for name, value in spec.config]
    return "\n".join(["struct Config {", *lines, "};"])


def _template(stem: str) -> str:
    folders = assets.folders("templates")
    for folder in folders:
        path = folder / f"{stem}{_SUFFIX}"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    known = sorted({path.name.removesuffix(_SUFFIX) for folder in folders for path in folder.glob(f"*{_SUFFIX}")})
    raise InputError(
        f"render the kernel {stem!r}", "a template of that name must exist",
        {"templates": ", ".join(known) or "none", "searched": ", ".join(map(str, folders))}, "name one of the templates",
    )


def _declaration(spec: KernelSpec, name: str, value: int | bool | str) -> str:
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return f"int {name} = {value}"
        if abs(value) < 2**63:
            return f"long long {name} = {value}LL"
        raise InputError(f"render {spec}", "an integer field must fit 64 bits", {name: value}, "make the field smaller")
    if isinstance(value, str):
        return f"auto {name} = {value}"
    raise InputTypeError(
        f"render {spec}", "a field of Config is a bool, an int or a C++ expression", {name: f"{value!r} ({type(value).__name__})"},
        "convert the value to a plain Python bool, int or str",
    )
