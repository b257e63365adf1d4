"""Imports go one way, and optional packages are imported only where they are used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "chord_jit"

GROUND = {"errors", "version", "knobs", "device", "assets"}
MIDDLE = {"formats", "routing", "schedules"}
#: Room to the rooms that it may import beside itself. A room is a top-level module or package of chord_jit.
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "knobs": {"errors"},
    "device": {"errors"},
    "assets": {"errors"},
    "jit": GROUND,
    "formats": GROUND | {"jit"},
    "routing": GROUND | {"jit"},
    "schedules": GROUND | {"jit", "formats"},
    "reference": GROUND | {"formats", "routing"},
    "families": GROUND | MIDDLE | {"jit", "reference"},
    "rows": GROUND | MIDDLE | {"jit", "families"},
    "plan": GROUND | MIDDLE | {"jit", "families"},
    "ops": GROUND | MIDDLE | {"families", "rows"},
    "layers": GROUND | MIDDLE | {"rows", "ops"},
    "api": GROUND | MIDDLE | {"jit", "families", "rows", "plan", "ops", "layers"},
    "integrations": GROUND | MIDDLE | {"families", "rows", "plan", "layers", "api"},
    "bench": GROUND | MIDDLE | {"jit", "families", "rows", "layers", "api", "reference"},
    "tune": GROUND | MIDDLE | {"jit", "families", "bench"},
    "cli": GROUND | MIDDLE | {"jit", "families", "plan", "api", "reference", "bench", "tune"},
    "__init__": GROUND | {"api"},
    "__main__": {"cli"},
}
#: Packages of the extras, and the heavy ones a process may never need: never imported at the top of a module.
ONLY_WHERE_USED = {"compressed_tensors", "transformers", "vllm", "matplotlib", "triton", "humming"}

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imported_modules(source: str) -> set[str]:
    """Dotted names that ``source`` imports anywhere; ``from a import b`` counts as ``a.b``."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {"." * node.level + f"{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def wrong_arrows(room: str, source: str) -> list[str]:
    wrong = []
    for name in sorted(imported_modules(source)):
        if name.startswith("."):
            wrong.append(f"{name}: imports are absolute here")
        elif name.startswith("chord_jit."):
            target = name.split(".")[1]
            if target != room and target in MAY_IMPORT and target not in MAY_IMPORT[room]:
                wrong.append(f"{room} -> {name}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_go_one_way(path):
    room = room_of(path.relative_to(PACKAGE).parts)
    assert room in MAY_IMPORT, f"{room} is a new room: give it its arrows here and in docs/architecture.md"
    assert wrong_arrows(room, path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_optional_packages_are_imported_where_used(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {name.split(".")[0] for node in top for name in imported_modules(ast.unparse(node))}
    assert names & ONLY_WHERE_USED == set()


def test_the_check_sees_a_wrong_arrow():
    cases = (
        ("jit", "from chord_jit.families import base"),
        ("formats", "def f():\n    import chord_jit.api"),
        ("families", "from .base import Family"),
        ("schedules", "from chord_jit import cli"),
    )
    for room, source in cases:
        assert wrong_arrows(room, source), source
    assert wrong_arrows("cli", "from chord_jit import api\nfrom chord_jit.errors import ChordError") == []
