"""Documents keep step with the code: generated pages, links, the measured block of the README."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import chord_jit
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


def test_marks_are_needed():
    assert make_docs.between_marks("a <!-- m:begin -->old<!-- m:end --> z", "m", "new") == "a <!-- m:begin -->\nnew\n<!-- m:end --> z"
    with pytest.raises(SystemExit, match="m:begin"):
        make_docs.between_marks("nothing here", "m", "new")


def test_the_snippet_of_the_readme_names_what_exists():
    """Every import resolves and every chord_jit name in it is public; tests/gpu runs the same calls."""
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    tree = ast.parse(snippet)
    exec("\n".join(ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))), {})
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "chord_jit"}
    assert used <= set(chord_jit.__all__)
    assert {"pack_w4a16", "warm_up", "Deployment", "MoELayer", "MoEWeights", "block_m_for", "align_blocks", "indexed"} == used
