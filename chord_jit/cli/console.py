"""Standard output of the commands: rich for people, plain lines for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """A console on the present standard output. Piped output is not cut to a terminal's width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def write(text: str) -> None:
    """One text and a line end to standard output, exactly as it is."""
    sys.stdout.write(text + "\n")
