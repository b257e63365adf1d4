"""Fetching vLLM's files: whole or not at all, and never in silence."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.clients.vllm import trees


def wheels(command: list[str]) -> None:
    """What pip would download, in small."""
    folder = Path(command[command.index("--dest") + 1])
    folder.mkdir()
    for name, files in {"vllm": ["vllm/version.py", "vllm/_C.abi3.so"], "humming_kernels": ["humming/schema/base.py"]}.items():
        with zipfile.ZipFile(folder / f"{name}.whl", "w") as archive:
            for file in [*files, f"{name}-1.dist-info/METADATA"]:
                archive.writestr(file, "")


def test_python_files_and_metadata_are_kept(tmp_path, monkeypatch):
    def pip(command, **options):
        wheels(command)
        assert command[-2:] == [f"vllm=={trees.VERSION}", f"humming-kernels=={trees.HUMMING[trees.VERSION]}"]
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)
    trees.fetch(tmp_path / "tree")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == [
        "tree/humming/schema/base.py", "tree/humming_kernels-1.dist-info/METADATA", "tree/vllm-1.dist-info/METADATA", "tree/vllm/version.py"
    ]  # fmt: skip


def test_a_fetch_that_fails_is_an_error_with_pips_words(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: SimpleNamespace(returncode=1, stderr="no route to the index"))
    with pytest.raises(RuntimeError, match="(?s)TEST_VLLM_TREE=none.*no route to the index"):
        trees.fetch(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_the_files_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "GIVEN", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="holds no vllm/ and humming/"):
        trees.tree()
