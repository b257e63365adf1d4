"""Documents keep step with the code: generated pages, links, the measured block of the README."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from chord_jit import errors, knobs
from tools import make_docs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
#: Names that only this package's own environment variables have.
VARIABLE = re.compile(r"\bCHORD_[A-Z0-9_]*[A-Z0-9]\b")


def test_generated_pages_are_in_step():
    for path, text in make_docs.pages().items():
        assert path.read_text() == text, f"{path.name} is behind the code: run python tools/make_docs.py"


def test_every_error_is_documented():
    page = (ROOT / "docs" / "errors.md").read_text()
    for name, member in inspect.getmembers(errors, inspect.isclass):
        if issubclass(member, errors.ChordError):
            assert inspect.getdoc(member), name
            assert f"`{name}`" in page or f"errors.{name}`" in page


def test_every_variable_has_one_name_and_a_line_of_documentation():
    names = [knob.name for knob in knobs.KNOBS]
    assert len(set(names)) == len(names)
    assert all(knob.doc.endswith(".") for knob in knobs.KNOBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_variables_named_in_a_page_exist(page):
    known = {knob.name for knob in knobs.KNOBS}
    named = set(VARIABLE.findall(page.read_text()))
    assert {name for name in named if name not in known and not any(other.startswith(name + "_") for other in known)} == set()
