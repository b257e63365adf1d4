"""``chord cache``: lists what is there, finds damage, and removes only what it was told to."""

from __future__ import annotations

import json
import os

import pytest

from chord_jit import cli, knobs
from chord_jit.device import target
from chord_jit.families.indexed import FAMILY
from chord_jit.jit import engine, eviction, notices, schema
from chord_jit.jit.roots import cache_root
from tests.toy.fake import FakeCompiler


@pytest.fixture
def entries(tmp_path, request):
    """A cache of two entries, beside a file of someone else. The parameter, if any, is the folder's name."""
    notices.forget()
    root = tmp_path / getattr(request, "param", "root")
    with knobs.scope(CHORD_CACHE_DIR=str(root)):
        compiler = FakeCompiler(tmp_path / "ledger")
        for k in (256, 512):
            problem = FAMILY.problem(target("sm_90a"), 4, 128, k, 2.0)
            engine.build(FAMILY.spec(problem, FAMILY.schedule(problem)), compiler)
        (root / "of_another_program").write_text("keep me")
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


@pytest.mark.parametrize("entries, name", [("a[b]c", "a[b]c"), ("a[/red]:x:", "a[/red]:x:")], indirect=["entries"])
def test_a_path_is_shown_as_it_is(entries, name, capsys, tmp_path):
    """Rich reads ``[...]`` as markup and ``:x:`` as an emoji, unless it is told not to."""
    file = tmp_path / f"{name}.tar"
    for argv in (["list"], ["verify"], ["export", str(file)], ["import", str(file)], ["prune", "--max-bytes", "1G"], ["clear", "--yes"]):
        assert cli.main(["cache", *argv]) == 0, argv
        told = capsys.readouterr()
        assert told.out.count(f"/{name}") == 1 + (argv == ["list"]) and told.err == "", argv


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


def test_why_two_entries_differ(entries, capsys):
    code, report = answer(capsys, "why", entries[0].name[:20], entries[1].name[:20])
    fields = {(each["field"], each["name"]) for each in report["differences"]}
    assert code == 0 and not report["same"] and ("config", "kK") in fields and ("source", "") in fields
    assert not any(field == "headers" for field, _ in fields)
    assert any("kK = 512" in line for line in report["source"])
    assert cli.main(["cache", "why", entries[0].name, entries[1].name]) == 0
    assert "config: kK" in capsys.readouterr().out


def test_why_an_entry_is_or_is_not_asked_for(entries, capsys, monkeypatch):
    code, report = answer(capsys, "why", entries[0].name)
    assert (code, report["same"], report["now"]) == (0, True, True)
    monkeypatch.setattr(schema, "PINNED_CUTLASS", "9.9.9")
    monkeypatch.setattr(schema, "KEY_VERSION", 2)
    code, report = answer(capsys, "why", entries[0].name)
    assert [(each["field"], each["one"], each["other"]) for each in report["differences"]] == [("key version", "1", "2")]


def test_prune_takes_the_least_recently_used_first(entries, capsys):
    eviction.forget()
    os.utime(entries[0] / "entry.json", (1, 1))
    size = sum(path.stat().st_size for path in entries[1].iterdir())
    code, report = answer(capsys, "prune", "--max-bytes", str(size))
    assert (code, report["entries"], report["kept"]) == (0, 1, size)
    assert not entries[0].exists() and entries[1].is_dir()
    assert answer(capsys, "prune", "--max-bytes", "0")[1]["kept"] == 0


def test_export_and_import(entries, capsys, tmp_path):
    file = tmp_path / "kernels.tar"
    code, report = answer(capsys, "export", str(file), entries[1].name[:20])
    assert (code, report["entries"]) == (0, [entries[1].name])
    assert cli.main(["cache", "export", str(file)]) == 2 and "must not replace" in capsys.readouterr().err
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "other")):
        code, report = answer(capsys, "import", str(file))
        assert (code, report["new"], report["notices"]) == (0, [entries[1].name], [])
        assert answer(capsys, "import", str(file))[1]["present"] == [entries[1].name]
        assert cli.main(["cache", "import", str(file)]) == 0 and "1 were there" in capsys.readouterr().out


def test_entries_that_nobody_will_ask_for_are_imported_with_a_notice(entries, capsys, tmp_path, monkeypatch):
    file = tmp_path / "kernels.tar"
    assert cli.main(["cache", "export", str(file)]) == 0
    monkeypatch.setattr(schema, "KEY_VERSION", 2)
    monkeypatch.setattr("chord_jit.version.VERSION", "0.0.1")
    capsys.readouterr()
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "other")):
        code, report = answer(capsys, "import", str(file))
        assert code == 0 and len(report["new"]) == 2
        assert any("key version 1, here 2" in notice for notice in report["notices"])
        assert any("made by chord_jit" in notice for notice in report["notices"])


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_a_damaged_entry_is_left_out_of_an_export(entries, capsys, tmp_path):
    (entries[0] / "kernel.cubin").write_bytes(b"broken")
    code, report = answer(capsys, "export", str(tmp_path / "kernels.tar"))
    assert code == 1 and report["entries"] == [entries[1].name] and entries[0].name[:16] in report["left_out"][0]


#: arguments, what the refusal names; FILE becomes a file of another kind
MISTAKES = (
    (["why", "xyz"], "first digits of its key"),
    (["why", "0" * 64], "matches=none"),
    (["why", ""], "first digits of its key"),
    (["export", "/no/such/folder/kernels.tar"], "writable"),
    (["export", "kernels.tar", "00000000"], "matches=none"),
    (["import", "/no/such/file"], "No such file"),
    (["import", "FILE"], "cut short, or no archive"),
)


@pytest.mark.parametrize("argv, named", MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_mistakes_change_nothing(argv, named, entries, capsys, tmp_path):
    (tmp_path / "FILE").write_text("something else")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["cache", *(str(tmp_path / "FILE") if part == "FILE" else part for part in argv)]) == 2
    message = capsys.readouterr().err
    assert named in message and "remedy:" in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "-1", "many", "3X", "1.5G"])
def test_sizes_that_are_none(text, entries, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["cache", "prune", "--max-bytes", text])
    assert stop.value.code == 2 and ("number of bytes" in (told := capsys.readouterr().err) or "expected one argument" in told)
    assert all(folder.is_dir() for folder in entries)


def test_a_prefix_of_two_entries_is_not_enough(entries, capsys):
    twin = entries[0].with_name(entries[0].name[:40] + "0" * 24)
    twin.mkdir()
    assert cli.main(["cache", "why", entries[0].name[:40]]) == 2
    message = capsys.readouterr().err
    assert entries[0].name in message and twin.name in message
