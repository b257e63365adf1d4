"""Where the commands write: results to standard output, progress to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_QUIET_SECONDS = 3.0


def console() -> Console:
    """A console on the present standard output. Piped output is not cut to a terminal's width.

    Every text is shown as it is, for a path may hold what rich takes for markup: what has a style is a ``rich.text.Text``.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False, emoji=False)


def write(text: str) -> None:
    """One text and a line end to standard output, exactly as it is."""
    sys.stdout.write(text + "\n")


def bar() -> Progress:
    """A bar on standard error, to be entered: what is being done, how far it is, how long it took and will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    title = TextColumn("{task.description}", markup=False)
    columns = (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


@contextmanager
def counting(title: str) -> Iterator[Callable[[int, int, object], None]]:
    """A callback ``(done, total, item)`` that shows how far ``title`` is and how long the rest will take.

    A moving bar on a terminal; elsewhere a plain line every few seconds and one at the end.
    """
    if not sys.stderr.isatty():
        started = said = time.perf_counter()

        def line(done: int, total: int, item: object) -> None:
            nonlocal said
            now = time.perf_counter()
            if done == total or now - said >= _QUIET_SECONDS:
                said = now
                left = (now - started) / done * (total - done)
                sys.stderr.write(f"{title}: {done}/{total} after {now - started:.0f} s, about {left:.0f} s left\n")

        yield line
        return

    with bar() as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, item: progress.update(task, completed=done, total=total)
