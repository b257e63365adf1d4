"""One small tree of errors. Every message has four lines: what was asked, which rule failed, the values, the remedy."""

from __future__ import annotations

from collections.abc import Mapping


class ChordError(Exception):
    """Base of everything chord_jit raises on purpose.

    ``asked``: the operation, as the caller named it. ``rule``: the rule that failed. ``values``: what was seen,
    name to value. ``remedy``: what to do. All four stay readable as attributes.
    """

    def __init__(self, asked: str, rule: str, values: Mapping[str, object] | None = None, remedy: str = ""):
        self.asked, self.rule, self.values, self.remedy = asked, rule, dict(values or {}), remedy
        shown = ", ".join(f"{name}={value}" for name, value in self.values.items())
        lines = [asked, f"  rule:   {rule}"]
        if shown:
            lines.append(f"  values: {shown}")
        if remedy:
            lines.append(f"  remedy: {remedy}")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return type(self), (self.asked, self.rule, self.values, self.remedy)


class InputError(ChordError, ValueError):
    """An argument's value breaks a rule: shape, range, alignment, layout."""


class InputTypeError(ChordError, TypeError):
    """An argument's type or dtype breaks a rule."""


class OverrideError(InputError):
    """A ``CHORD_*`` variable holds a value that its parser or the legality rules refuse."""


class UnsupportedDeviceError(ChordError, RuntimeError):
    """The device, or its architecture, is not one that chord_jit has kernels for."""


class ToolchainError(ChordError, RuntimeError):
    """A compiler or a header that a cold kernel needs was not found."""


class CompileError(ChordError, RuntimeError):
    """The compiler refused a kernel. ``log`` holds its output."""

    def __init__(self, asked: str, rule: str, values: Mapping[str, object] | None = None, remedy: str = "", log: str = ""):
        super().__init__(asked, rule, values, remedy)
        self.log = log
        if log:
            self.args = (f"{self.args[0]}\n{log}",)

    def __reduce__(self):
        return type(self), (self.asked, self.rule, self.values, self.remedy, self.log)


class CacheError(ChordError, RuntimeError):
    """A cache root or an entry cannot be used as asked."""


class CaptureError(ChordError, RuntimeError):
    """What a capturing stream cannot do was asked for inside CUDA graph capture: a cold kernel, a checked call."""


class ChordInternalError(ChordError, RuntimeError):
    """A broken invariant of chord_jit itself: please report it."""


class LaunchError(ChordError, RuntimeError):
    """The driver refused to enqueue a kernel; nothing was started."""
