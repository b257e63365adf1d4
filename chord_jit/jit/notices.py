"""Warnings that a user sees once, however many kernels run into the same trouble."""

from __future__ import annotations

import warnings

_said: set[str] = set()


class CacheWarning(RuntimeWarning):
    """The cache or its locks work with less than was asked of them; every result stays right."""


def once(topic: str, text: str) -> None:
    """Warn with ``text``, the first time that this process meets ``topic``."""
    if topic not in _said:
        _said.add(topic)
        warnings.warn(text, CacheWarning, stacklevel=3)


def forget() -> None:
    """Say everything again."""
    _said.clear()
