"""``chord verify`` over the folders of all ranks: together they must be the whole model, each under its own name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from chord_jit import cli
from tests.unit.formats import tiny_layers as tiny


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    """A folder with a checkpoint ``model``, ``all``: its four ranks, ``two``: two ranks, and ``one``: no folders of ranks."""
    folder = tmp_path_factory.mktemp("origin")
    tiny.write(folder / "model", 31, [1, 2], tiny.config(2, 4, 32, 64))
    for name, asked in (("all", ["--ep", "4", "--all-ranks"]), ("two", ["--ep", "2", "--all-ranks"]), ("one", [])):
        assert cli.main(["pack", str(folder / "model"), str(folder / name), *asked]) == 0
    return folder


def of(rank: int, ranks: int = 4) -> str:
    return f"rank-{rank:05d}-of-{ranks:05d}"


def without(*ranks: int):
    return lambda folder: [shutil.rmtree(folder / of(rank)) for rank in ranks]


def no_index(folder: Path) -> None:
    (folder / of(3) / "chord-packed.index.json").unlink()


def add(source: str, name: str):
    return lambda folder: shutil.copytree(folder.parent / "origin" / source, folder / name, dirs_exist_ok=True)


def swap(folder: Path) -> None:
    (folder / of(1)).rename(folder / "aside")
    (folder / of(2)).rename(folder / of(1))
    (folder / "aside").rename(folder / of(2))


def apart(folder: Path) -> None:
    shutil.rmtree(folder / of(1))
    model, rank = folder.parent / "origin" / "model", folder / of(1)
    assert cli.main(["pack", str(model), str(rank), "--ep", "4", "--rank", "1", "--separate"]) == 0


def fewer_layers(folder: Path) -> None:
    shutil.rmtree(folder / of(1))
    model, rank = folder.parent / "origin" / "model", folder / of(1)
    assert cli.main(["pack", str(model), str(rank), "--ep", "4", "--rank", "1", "--layers", "2"]) == 0


#: What happened to four folders of ranks, and the problems that they have together.
WRONG = {
    "the last ranks are missing": (without(2, 3), ["rank 2 of 4: not there", "rank 3 of 4: not there"]),
    "the first is missing": (without(0), ["rank 0 of 4: not there"]),
    "one without an index": (no_index, ["rank 3 of 4: not there"]),
    "another number of ranks": (
        add("two/" + of(1, 2), of(1, 2)), ["folders of 2 and of 4 ranks lie side by side", "rank 0 of 2: not there"],
    ),
    "two under each other's names": (swap, [f"{of(1)}: its index is of {of(2)}", f"{of(2)}: its index is of {of(1)}"]),
    "a copy under a name of no rank": (add("all/" + of(1), "rank-1-old"), [f"rank-1-old: its index is of {of(1)}"]),
    "rows of another order": (apart, [f"{of(1)}: packed otherwise than {of(0)}"]),
    "other layers": (fewer_layers, [f"{of(1)}: meant to hold other layers than {of(0)}"]),
    "an index beside them": (add("one", "."), ["it holds an index of its own beside folders of ranks"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_ranks_that_are_no_whole_are_a_problem_of_their_folder(origin, tmp_path, capsys, name):
    change, problems = WRONG[name]
    (tmp_path / "origin").symlink_to(origin)
    target = Path(shutil.copytree(origin / "all", tmp_path / "all"))
    change(target)
    capsys.readouterr()
    assert cli.main(["verify", str(target), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    told = {row["path"]: row["problems"] for row in body["folders"] if row["problems"]}
    assert not body["whole"] and told == {str(target): problems}
    assert cli.main(["verify", str(target)]) == 1
    text = capsys.readouterr().out
    assert all(f"  {problem}\n" in text for problem in problems)


def test_an_index_beside_folders_of_ranks_is_checked_with_them(origin, tmp_path, capsys):
    target = Path(shutil.copytree(origin / "one", tmp_path / "both"))
    shutil.copytree(origin / "two", target, dirs_exist_ok=True)
    for file in (target / "layer-00001.safetensors", target / of(1, 2) / "layer-00002.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    assert cli.main(["verify", str(target), "--json"]) == 1
    told = {row["path"]: row["problems"] for row in json.loads(capsys.readouterr().out)["folders"]}
    assert "layer 1: layers.1.down" in told[str(target)][0] and "beside folders of ranks" in told[str(target)][-1]
    assert told[str(target / of(0, 2))] == [] and "layer 2: layers.2.down" in told[str(target / of(1, 2))][0]


def test_all_ranks_of_a_model_are_whole(origin, capsys):
    for name in ("all", "two", "one"):
        assert cli.main(["verify", str(origin / name), "--source", str(origin / "model"), "--json"]) == 0
    assert cli.main(["verify", str(origin / "all" / of(2))]) == 0, "one rank by itself is whole"


def test_ranks_without_end_are_not_all_named(tmp_path, capsys):
    tiny.write(tmp_path / "model", 31, [1], tiny.config(1, 32, 32, 32))
    target = tmp_path / "all" / of(0, 32)
    assert cli.main(["pack", str(tmp_path / "model"), str(target), "--ep", "32"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", str(target.parent), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["folders"][-1]["problems"]
    assert problems == [f"rank {rank} of 32: not there" for rank in range(1, 17)] + ["more ranks: not there"]
