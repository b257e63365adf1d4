"""``chord pack`` and ``chord verify`` from their arguments to their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chord_jit import cli
from chord_jit.formats.checkpoint import load_moe_layers
from chord_jit.formats.packed_load import load_packed
from tests.unit.cli.test_main import outcome
from tests.unit.formats import tiny_layers as tiny

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny.write(folder, 31, [1, 2, 3], tiny.config(3, 4, 32, 64))
    return folder


def test_one_rank(model, tmp_path, capsys):
    target = tmp_path / "packed"
    assert cli.main(["pack", str(model), str(target), "--ep", "2", "--rank", "1"]) == 0
    captured = capsys.readouterr()
    assert f"{target}: 3 layers written, 0 were there" in captured.out and "experts of rank 1: 6/6 after" in captured.err
    wanted = load_moe_layers(model, ep=2, rank=1)
    assert all(tiny.same(found, wanted[layer]) for layer, found in load_packed(target).items())
    assert cli.main(["verify", str(target), "--source", str(model)]) == 0
    assert "3 layers" in (text := capsys.readouterr().out) and "every byte right, 6 experts as in the source" in text


def test_layers_are_added_and_told_as_json(model, tmp_path, capsys):
    target = str(tmp_path / "packed")
    assert cli.main(["pack", model.as_posix(), target, "--layers", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folders"][0]["written"] == [2]
    assert cli.main(["pack", model.as_posix(), target, "--layers", "1-2", "3", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    (folder,) = body["folders"]
    assert (body["ep"], body["tp"], folder["path"], folder["written"], folder["present"]) == (1, 1, target, [1, 3], [2])
    assert folder["bytes"] == sum(path.stat().st_size for path in Path(target).glob("*.safetensors"))
    assert cli.main(["verify", target, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["whole"] and body["folders"][0]["layers"] == 3 and body["folders"][0]["problems"] == []


def test_all_ranks_and_rows_apart(model, tmp_path, capsys):
    target = tmp_path / "all"
    assert cli.main(["pack", str(model), str(target), "--ep", "2", "--tp", "2", "--all-ranks", "--separate"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    for rank in range(4):
        wanted = load_moe_layers(model, ep=2, tp=2, rank=rank, interleave=False)
        found = load_packed(target / f"rank-{rank:05d}-of-00004")
        assert list(found) == [1, 2, 3] and all(tiny.same(found[layer], wanted[layer]) for layer in found)
    assert cli.main(["verify", str(target), "--source", str(model), "--all-experts", "--json"]) == 0
    assert [one["experts_compared"] for one in json.loads(capsys.readouterr().out)["folders"]] == [6] * 4
    assert cli.main(["verify", str(target / "rank-00002-of-00004")]) == 0


def test_damage_is_exit_code_1_and_named(model, tmp_path, capsys):
    target = tmp_path / "packed"
    assert cli.main(["pack", str(model), str(target)]) == 0
    file = target / "layer-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    capsys.readouterr()
    assert cli.main(["verify", str(target)]) == 1
    text = capsys.readouterr().out
    assert "1 problems" in text and "layer 2: layers.2.down is not what was written: its SHA-256 differs" in text
    assert cli.main(["verify", str(target), "--source", str(model), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert not body["whole"] and len(body["folders"][0]["problems"]) >= 1


SRC = "the checkpoint"
#: Arguments with SRC for a good checkpoint, and what standard error must name.
REFUSED = [
    (["pack"], "SRC"),
    (["pack", SRC], "DST"),
    (["pack", SRC, "new", "--ep", "0"], "must be at least 1"),
    (["pack", SRC, "new", "--ep", "3"], "experts=4, ep=3"),
    (["pack", SRC, "new", "--tp", "4"], "moe_intermediate_size=64, tp=4"),
    (["pack", SRC, "new", "--tp", "4", "--all-ranks"], "moe_intermediate_size=64, tp=4"),
    (["pack", SRC, "new", "--ep", "2", "--rank", "2"], "rank=2"),
    (["pack", SRC, "new", "--rank", "-1"], "rank=-1"),
    (["pack", SRC, "new", "--rank", "1", "--all-ranks"], "not allowed with"),
    (["pack", SRC, "new", "--layers", "0"], "load layer 0"),
    (["pack", SRC, "new", "--layers", "1-9"], "load layer 4"),
    (["pack", SRC, "new", "--layers", "1", "1-2"], "named once"),
    (["pack", SRC, "new", "--layers", "2-1"], "rising order"),
    (["pack", SRC, "new", "--layers", "0-9999999999"], "below 10000"),
    (["pack", SRC, "new", "--layers", "one"], "first-last, not 'one'"),
    (["pack", "nowhere", "new"], "must exist"),
    (["verify"], "PATH"),
    (["verify", "new"], "make one with chord pack"),
    (["verify", SRC], "chord-packed.index.json"),
    (["verify", SRC, "--experts", "0"], "must be at least 1"),
    (["verify", SRC, "--experts", "1", "--all-experts"], "not allowed with"),
]


@pytest.mark.parametrize("argv, named", REFUSED, ids=[" ".join(argv) for argv, _ in REFUSED])
def test_bad_arguments_exit_with_2_and_leave_nothing(argv, named, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert outcome([str(model) if word == SRC else word for word in argv]) == 2
    captured = capsys.readouterr()
    assert named in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_not_whole_leaves_nothing(tmp_path, seed, capsys):
    tiny.write(tmp_path / "model", seed, [1], tiny.config(1, 2, 32, 32))
    shard = tmp_path / "model" / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    assert cli.main(["pack", str(tmp_path / "model"), str(tmp_path / "new"), "--ep", "2", "--all-ranks"]) == 2
    message = capsys.readouterr().err
    assert "chord pack: open model-00002-of-00003.safetensors" in message and "rule:" in message and "remedy:" in message
    assert not (tmp_path / "new").exists()


def test_help_imports_nothing_heavy():
    code = """
import sys
from chord_jit import cli
try:
    cli.main(["pack", "--help"])
except SystemExit:
    sys.exit(sorted({"safetensors", "torch", "rich"} & set(sys.modules)) or None)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and "--all-ranks" in result.stdout, result.stderr
