"""The little of ELF that tells a cubin with our kernel from anything else."""

from __future__ import annotations

import struct

_MACHINE_CUDA = 190
_SECTION_SYMBOLS = 2
_TYPE_FUNCTION = 2
_BINDING_LOCAL = 0

#: type, machine, (version, entry, program headers), section headers, flags, (sizes), section entry size, sections.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def kernels(image: bytes) -> list[str]:
    """Names of the global functions in a cubin, in symbol order. Raises ``ValueError`` that says what is wrong with it."""
    if image[:4] != b"\x7fELF":
        raise ValueError(f"it starts with {image[:4]!r}, not with an ELF header")
    try:
        return _kernels(image)
    except struct.error:
        raise ValueError(f"its {len(image)} bytes end inside a table") from None


def _kernels(image: bytes) -> list[str]:
    identity, _, machine, _, _, _, offset, _, _, _, _, entry, count, _ = _HEADER.unpack_from(image)
    if identity[4:6] != b"\x02\x01" or machine != _MACHINE_CUDA or entry != _SECTION.size:
        raise ValueError(f"it is no 64-bit CUDA image: class and order {identity[4:6]!r}, machine {machine}")
    sections = [_SECTION.unpack_from(image, offset + index * entry) for index in range(count)]
    names = []
    for section in sections:
        kind, start, size, link = section[1], section[4], section[5], section[6]
        if kind != _SECTION_SYMBOLS:
            continue
        if link >= count:
            raise ValueError("its symbol table names no string table")
        strings = sections[link][4]
        for at in range(start, start + size, _SYMBOL.size):
            name, info, _, index, _, _ = _SYMBOL.unpack_from(image, at)
            if info & 15 == _TYPE_FUNCTION and info >> 4 != _BINDING_LOCAL and index:
                names.append(_text(image, strings + name))
    return names


def _text(image: bytes, start: int) -> str:
    end = image.find(b"\0", start)
    if end < 0:
        raise ValueError("a name in its symbol table does not end")
    return image[start:end].decode(errors="replace")
