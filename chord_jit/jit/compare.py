"""Two keys field by field, and an entry's key against the one that this installation would ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from chord_jit.errors import ChordError, InputError
from chord_jit.jit.key import Key, key_of
from chord_jit.jit.spec import KernelSpec

_CONFIG = re.compile(r"(\w+): (bool|int|str) = (.*)")
_PARSE = {"bool": lambda text: text == "True", "int": int, "str": str}

#: Fields of several lines, and how a line splits into a name and what stands for it.
_SPLIT = {"config": ": ", "headers": " ", "flags": None}


@dataclass(frozen=True)
class Difference:
    """``field`` of the key; ``name``: the line within a field of several (a config field, a header). None: it is not there."""

    field: str
    name: str
    one: str | None
    other: str | None


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[Difference]:
    """Every field in which two keys differ, in the order of labels; no difference means equal digests."""
    found = []
    for label in sorted({*one, *other}):
        lines, others = _lines(label, one.get(label)), _lines(label, other.get(label))
        names = [name for name in dict.fromkeys((*lines, *others)) if lines.get(name) != others.get(name)]
        found += [Difference(label, name, lines.get(name), others.get(name)) for name in names]
        if not names and one.get(label) != other.get(label):
            found.append(Difference(label, "order", one.get(label), other.get(label)))
    return found


def spec_of(fields: Mapping[str, str]) -> KernelSpec:
    """The kernel spec that a key was made of. Raises ``InputError`` for fields of another key version."""
    try:
        matches = [_CONFIG.fullmatch(line) for line in fields["config"].splitlines()]
        config = tuple((match[1], _PARSE[match[2]](match[3])) for match in matches)
        return KernelSpec(fields["stem"], config, fields["arch"])
    except (KeyError, TypeError, ValueError):
        given = {"key version": fields.get("key version", "?")}
        raise InputError("read the key of an entry", "its fields must be of a known version", given, "build the kernel again") from None


def asked_now(fields: Mapping[str, str]) -> Key | None:
    """The key under which this installation would ask for the same kernel; None where it knows no such kernel or target."""
    try:
        return key_of(spec_of(fields))
    except ChordError:
        return None


def _lines(label: str, text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    if label not in _SPLIT:
        return {"": text}
    parts = [line.partition(_SPLIT[label]) if _SPLIT[label] else (line, "", "present") for line in text.splitlines()]
    return {name: rest for name, _, rest in parts}
