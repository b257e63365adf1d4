"""What a kernel is before it is compiled: a template stem, its named configuration and a target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSpec:
    """One kernel to be built.

    ``stem``: names ``templates/<stem>.cu.j2``. ``config``: the fields of the rendered ``Config`` struct in order,
    C++ name to value; bool and int become constants, a str is a C++ constant expression. ``arch``: ``sm_90a``, ...
    Only compile-time facts belong here: no row count, no expert count, no SM count.
    """

    stem: str
    config: tuple[tuple[str, int | bool | str], ...]
    arch: str

    @property
    def symbol(self) -> str:
        """Name of the kernel in the cubin."""
        return f"chord_{self.stem}"

    def __str__(self) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self.config)
        return f"{self.stem} [{self.arch}] {fields}"
