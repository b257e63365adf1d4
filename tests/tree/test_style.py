"""House rules that a machine can check: file sizes, and what ruff is configured to refuse in the package."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CAP, KERNEL_CAP, MEDIAN, DEVICE_WIDTH = 400, 450, 100, 160
SOURCES = sorted(
    path
    for folder, patterns in {
        "chord_jit": ("*.py",), "tests": ("*.py",), "tools": ("*.py", "*.sh"), "benchmarks": ("*.py",), "include": ("*.cuh", "*.h"),
        "templates": ("*.j2",),
    }.items()
    for pattern in patterns
    for path in (ROOT / folder).rglob(pattern)
)

#: Code that the rules must refuse at this place, and the rule that does.
REFUSED = (
    ("chord_jit/api.py", "from math import *\n", "F403"),
    ("chord_jit/api.py", "print(1)\n", "T201"),
    ("chord_jit/api.py", "x = 1  # TODO: more\n", "FIX002"),
    ("chord_jit/api.py", "def f(x):\n    assert x > 0\n", "S101"),
    ("chord_jit/jit/store.py", "import os\n\nx = os.environ\n", "TID251"),
    ("chord_jit/jit/store.py", "import os\n\nx = os.getenv('HOME')\n", "TID251"),
    ("chord_jit/api.py", "x = '" + "a" * 150 + "'\n", "E501"),
)
ACCEPTED = (
    ("chord_jit/knobs.py", "import os\n\nx = os.environ\n"),
    ("tests/unit/test_x.py", "def test_x():\n    print(1)\n    assert 1\n"),
)


def ruff(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", *arguments],
        cwd=ROOT, input=text, capture_output=True, text=True,
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_within_its_cap(path):
    lines = len(path.read_text().splitlines())
    assert lines <= (KERNEL_CAP if "kernels" in path.parent.name else CAP)


def test_median_file_is_small():
    lengths = [len(path.read_text().splitlines()) for path in SOURCES if path.is_relative_to(ROOT / "chord_jit")]
    assert statistics.median(lengths) <= MEDIAN


def test_ruff_finds_nothing():
    result = ruff(".")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("place, text, rule", REFUSED, ids=[f"{rule}-{place}" for place, _, rule in REFUSED])
def test_the_rules_refuse(place, text, rule):
    result = ruff("--stdin-filename", place, "-", text=text)
    assert rule in result.stdout


@pytest.mark.parametrize("place, text", ACCEPTED, ids=[place for place, _ in ACCEPTED])
def test_the_rules_accept(place, text):
    result = ruff("--stdin-filename", place, "-", text=text)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix in (".cuh", ".h", ".j2")], ids=lambda path: path.name)
def test_device_code_has_no_loose_ends(path):
    text = path.read_text()
    assert "TODO" not in text and "FIXME" not in text and "\t" not in text
    assert max(map(len, text.splitlines())) <= DEVICE_WIDTH
