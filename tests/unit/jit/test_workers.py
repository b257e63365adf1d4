"""Compilers in processes of their own: what they import."""

from __future__ import annotations

import sys

import pytest

from chord_jit.jit.compiler import Request
from chord_jit.jit.workers import Pool


class Told:
    """A compiler that says where the worker's ``queue`` came from."""

    def compile(self, request: Request) -> str:
        import queue

        return queue.__file__


@pytest.mark.parametrize("planted", ["queue.py", "chord_jit/__init__.py"])
def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch, planted):
    """It may be anybody's, or hold another checkout, whose cubins would get our keys."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / planted).parent.mkdir(exist_ok=True)
    (tmp_path / planted).write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    with Pool(Told()) as pool:
        assert not pool.compile(Request("", "", "", "sm_90a", ())).startswith(str(tmp_path))
