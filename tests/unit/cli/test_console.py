"""Progress: a bar for people, few lines for logs, never on standard output."""

from __future__ import annotations

import io
import json

import pytest

from chord_jit.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream, moves", [(io.StringIO, False), (Terminal, True)], ids=["log", "terminal"])
def test_progress_counts_to_the_end_on_standard_error(stream, moves, monkeypatch, capsys):
    shown = stream()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with console.counting("kernels") as progress:
        for done in range(1, 41):
            progress(done, 40, None)
    assert "kernels" in shown.getvalue() and "40/40" in shown.getvalue()
    assert ("\r" in shown.getvalue()) is moves and shown.getvalue().count("\n") == 1
    assert capsys.readouterr().out == ""


def test_a_log_gets_an_estimate(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(clock))
    with console.counting("kernels") as progress:
        progress(1, 4, None)
        progress(2, 4, None)
    assert capsys.readouterr().err.splitlines() == ["kernels: 1/4 after 10 s, about 30 s left", "kernels: 2/4 after 20 s, about 20 s left"]


def test_piped_tables_are_not_cut_to_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    console.console().print("x" * 100)
    assert capsys.readouterr().out == "x" * 100 + "\n"


def test_write_leaves_text_as_it_is(capsys):
    text = json.dumps({"path": "[bold]/a/b[/]", "long": "y" * 300})
    console.write(text)
    assert capsys.readouterr().out == text + "\n"


def test_a_bar_shows_its_title_as_it_is(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with console.counting("layers of a[b]c[/red]") as progress:
        progress(1, 1, None)
    assert "layers of a[b]c[/red]" in shown.getvalue()
