"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
