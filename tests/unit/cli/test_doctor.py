"""``chord doctor`` finds what is there, names what is not, and says how to get it."""

from __future__ import annotations

import json
import re

import pytest

from chord_jit import cli, knobs
from chord_jit.cli import doctor
from chord_jit.jit import schema
from chord_jit.jit.store import Store

#: Variables that break one part of the toolchain, the part, and what the remedy must hold.
BROKEN = (
    ({"CHORD_CUTLASS_DIR": "/no/such/cutlass"}, "CUTLASS headers", "nvidia-cutlass"),
    ({"CHORD_COMPILER": "nvcc", "CHORD_NVCC": "/no/such/nvcc"}, "nvcc", "CUDA"),
    ({"CHORD_CACHE_DIR": "/dev/null/cache"}, "cache", "CHORD_CACHE_DIR"),
    ({"CHORD_LOCK_DIR": "/dev/null/locks"}, "locks", "CHORD_LOCK_DIR"),
)


def examine(capsys) -> tuple[int, dict]:
    code = cli.main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_complete_machine(capsys):
    code, report = examine(capsys)
    found = {check["name"]: check for check in report["checks"]}
    assert code == 0 and report["ok"]
    assert {"Python", "packages", "torch", "NVRTC", "CUDA headers", "CUTLASS headers", "trial compile", "cache", "locks"} <= found.keys()
    assert found["NVRTC"]["found"].startswith("13.0.88 in ")
    assert found["trial compile"]["found"].startswith("sm_90a")


@pytest.mark.parametrize("variables, part, remedy", BROKEN, ids=[part for _, part, _ in BROKEN])
def test_v22_what_is_missing_is_named_with_its_remedy(variables, part, remedy, capsys):
    with knobs.scope(**variables):
        code, report = examine(capsys)
    (check,) = [check for check in report["checks"] if check["name"] == part]
    assert code == 1 and not report["ok"]
    assert check["state"] == "missing" and remedy in check["remedy"]
    assert any(value in check["found"] for value in variables.values())


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_a_cache_that_others_can_write_is_not_called_usable(tmp_path, capsys):
    """The cache itself would read nothing from it."""
    root = tmp_path / "cache" / schema.STORE_FOLDER
    root.mkdir(parents=True)
    for mode, code in ((0o775, 1), (0o700, 0)):
        root.chmod(mode)
        with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache")):
            assert examine(capsys)[0] == code
            assert Store(root).usable() == (code == 0)


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_ends_the_examination(package, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_PACKAGES", (*doctor._PACKAGES, package))
    code, report = examine(capsys)
    assert code == 1 and report["checks"][-1]["found"] == f"cannot import {package}"
    assert report["checks"][-1]["remedy"] == "pip install ., in the checkout of chord_jit and in this environment"


def test_variables_in_force_are_shown(capsys):
    with knobs.scope(CHORD_W4A16_BM="16"):
        _, report = examine(capsys)
    assert "CHORD_W4A16_BM=16" in report["checks"][-1]["found"]


def test_the_report_for_people(capsys):
    with knobs.scope(CHORD_CUTLASS_DIR="/no/such/cutlass"):
        assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "missing CUTLASS headers: pip install" in text and "NVRTC" in text


@pytest.mark.parametrize("name", ["a[b]c", "a[/red]:x:"])
def test_a_path_is_shown_as_it_is(name, tmp_path, capsys):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("no folder")
    for folder, code in ((file, 1), (tmp_path / f"new_{name}", 0)):
        with knobs.scope(CHORD_CACHE_DIR=str(folder)):
            assert cli.main(["doctor"]) == code
        assert str(folder) in re.sub(r"[\s│]", "", capsys.readouterr().out), "cells are folded"


def test_nothing_is_made_on_disk(tmp_path, capsys):
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache"), CHORD_LOCK_DIR=str(tmp_path / "locks")):
        assert cli.main(["doctor"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_roots_with_what_they_hold(tmp_path, capsys):
    entry = tmp_path / "wheel" / schema.STORE_FOLDER / "ab" / ("ab" * 32)
    entry.mkdir(parents=True)
    (entry / "kernel.cubin").write_bytes(bytes(3 << 20))
    (tmp_path / "wheel" / schema.ABOUT).write_text(json.dumps({"chord_jit": "0.0.1", "archs": ["sm_90a"]}))
    with knobs.scope(CHORD_PREBUILT=f"{tmp_path / 'wheel'}:{tmp_path / 'none'}", CHORD_CACHE_DIR=str(tmp_path / "user")):
        code, report = examine(capsys)
    found = [(check["state"], check["found"]) for check in report["checks"] if check["name"] == "prebuilt kernels"]
    assert code == 0 and [state for state, _ in found] == ["ok", "none"] and "is not there" in found[1][1]
    assert "1 entries, 3.0 MiB, for sm_90a, made by chord_jit 0.0.1, another version" in found[0][1]
    (cache,) = [check["found"] for check in report["checks"] if check["name"] == "cache"]
    assert cache.endswith("writable, 0 entries, 0.0 MiB")
