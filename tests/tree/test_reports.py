"""The table of public reports, and two of its rules that only the text of the code can show."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cache_reports.md"
REPORTS = range(1, 58)
NAME = re.compile(r"test_((?:v\d+_)+)")
#: What a row says of its report.
STATE = re.compile(r"tested(; .+ waits for .+)?|waits for .+|not applicable: .+")


def rows() -> list[tuple[int, list[str]]]:
    """Number and the other cells of each row of the table."""
    found = re.findall(r"^\| V(\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return [(int(number), [cell.strip() for cell in cells.split(" | ")]) for number, cells in found]


def named_tests() -> dict[str, set[Path]]:
    """Every test with the number of a report in its name, and the files it stands in."""
    found: dict[str, set[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^def (test_v\d+_\w+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, set()).add(path.relative_to(ROOT / "tests"))
    return found


def numbers(name: str) -> list[int]:
    return [int(part[1:]) for part in NAME.match(name).group(1).split("_") if part]


def test_every_report_stands_in_the_table_once_and_in_order():
    assert [number for number, _ in rows()] == list(REPORTS)
    assert {len(cells) for _, cells in rows()} == {4}


@pytest.mark.parametrize("number, cells", rows(), ids=[f"V{number}" for number, _ in rows()])
def test_a_row_names_exactly_the_tests_of_its_report(number, cells):
    report, guarantee, named, state = cells
    here, _, on_gpu = named.partition("GPU:")
    every = {name: files for name, files in named_tests().items() if number in numbers(name)}
    on_the_gpu = {name for name, files in every.items() if any(file.parts[0] == "gpu" for file in files)}
    without = {name for name, files in every.items() if any(file.parts[0] != "gpu" for file in files)}
    for text, wanted in ((here, without), (on_gpu, on_the_gpu)):
        listed = re.findall(r"`(test_\w+)`", text)
        assert sorted(listed) == sorted(wanted)
    assert report and guarantee and STATE.fullmatch(state)
    assert state.startswith("tested") == bool(every)


def test_a_test_without_a_number_is_where_the_table_says():
    placed = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())
    assert len(placed) >= 9
    assert [] == [(file, name) for file, name in placed if f"def {name}(" not in (ROOT / "tests" / file).read_text()]


def test_no_test_has_the_number_of_no_report():
    assert {number for name in named_tests() for number in numbers(name)} <= set(REPORTS)


# -- V27: words, never a command line ------------------------------------------------------------------------------------
def command_lines(source: str) -> list[str]:
    """Calls in ``source`` that let a shell, or a split at blanks, decide where a word ends."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        text = bool(call.args) and isinstance(call.args[0], (ast.Constant, ast.JoinedStr, ast.BinOp))
        shell = any(keyword.arg == "shell" for keyword in call.keywords)
        if name in ("os.system", "os.popen", "shlex.split") or name.startswith("subprocess.") and (text or shell):
            found.append(ast.unparse(call))
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "chord_jit").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_v27_programs_are_started_by_words(path):
    assert command_lines(path.read_text()) == []


@pytest.mark.parametrize("source", ["os.system('nvcc x')", "subprocess.run(f'{nvcc} x')", "subprocess.Popen(words, shell=True)"])
def test_v27_the_rule_sees(source):
    assert command_lines(source)


# -- V46: offsets of 64 bits ---------------------------------------------------------------------------------------------
_OFFSET = re.compile(r"(?:\b(?:p|params)\.(?:x|weight|out|sums)|= out) \+ ([^;]*)")


def short_offsets(source: str) -> tuple[list[str], int]:
    """Offsets from the address of a tensor that may be computed in 32 bits, and the number of all offsets."""
    wide = set(re.findall(r"const u?int64_t (\w+) =", source))
    offsets = _OFFSET.findall(source)
    return [text for text in offsets if not re.match(r"\(?u?int64_t\(", text) and re.match(r"\w*", text).group() not in wide], len(offsets)


def test_v46_offsets_from_a_tensor_are_computed_in_64_bits():
    found = {path.name: short_offsets(path.read_text()) for path in (ROOT / "include").rglob("*.cuh")}
    assert {name: short for name, (short, _) in found.items() if short} == {}
    assert sum(count for _, count in found.values()) >= 7


@pytest.mark.parametrize("source", ["p.x + row * kK;", "params.weight + start;", "line = out + row * int64_t(kN);", "p.sums + (i * 4);"])
def test_v46_the_rule_sees(source):
    assert short_offsets(source)[0]
