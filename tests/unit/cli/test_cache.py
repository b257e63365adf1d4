"""``chord cache``: lists what is there, finds damage, and removes only what it was told to."""

from __future__ import annotations

import json

import pytest

from chord_jit import cli, knobs
from chord_jit.device import target
from chord_jit.families.indexed import FAMILY
from chord_jit.jit import engine, notices
from chord_jit.jit.roots import cache_root
from tests.toy.fake import FakeCompiler


@pytest.fixture
def entries(tmp_path):
    """A cache of two entries, beside a file of someone else."""
    notices.forget()
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "root")):
        compiler = FakeCompiler(tmp_path / "ledger")
        for k in (256, 512):
            problem = FAMILY.problem(target("sm_90a"), 4, 128, k, 2.0)
            engine.build(FAMILY.spec(problem, FAMILY.schedule(problem)), compiler)
        (tmp_path / "root" / "of_another_program").write_text("keep me")
        yield sorted(path.parent for path in cache_root().glob("??/*/entry.json"))


def answer(capsys, *argv: str) -> tuple[int, dict]:
    code = cli.main(["cache", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list(entries, capsys):
    code, report = answer(capsys, "list")
    assert code == 0 and report["damaged"] == 0
    assert [entry["digest"] for entry in report["entries"]] == [folder.name for folder in entries]
    assert {entry["stem"] for entry in report["entries"]} == {"w4a16_mma"} and {entry["arch"] for entry in report["entries"]} == {"sm_90a"}
    assert any("kK=512" in entry["config"] for entry in report["entries"])
    assert cli.main(["cache", "list"]) == 0
    assert entries[0].name[:12] in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.cu", "entry.json"])
def test_verify_finds_one_flipped_byte(name, entries, capsys):
    assert answer(capsys, "verify")[0] == 0
    path = entries[0] / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    code, report = answer(capsys, "verify")
    assert code == 1 and report["damaged"] == 1
    assert [entry["whole"] for entry in report["entries"]] == [False, True]
    assert answer(capsys, "list")[0] == 0
    assert all(folder.is_dir() for folder in entries), "verify only looks"


def test_clear_needs_a_yes(entries, capsys):
    assert cli.main(["cache", "clear"]) == 2
    assert "entries=2" in capsys.readouterr().err
    assert all((folder / "kernel.cubin").is_file() for folder in entries)


def test_clear_removes_entries_and_nothing_else(entries, capsys, tmp_path):
    code, report = answer(capsys, "clear", "--yes")
    assert (code, report["removed"]) == (0, 2)
    assert not any(folder.exists() for folder in entries)
    assert (tmp_path / "root" / "of_another_program").read_text() == "keep me"
    assert answer(capsys, "list")[1]["entries"] == []


def test_an_empty_cache(tmp_path, capsys):
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "none")):
        assert answer(capsys, "list")[1]["entries"] == []
        assert answer(capsys, "verify")[0] == 0
        assert answer(capsys, "clear", "--yes")[1]["removed"] == 0
    assert list(tmp_path.iterdir()) == []
