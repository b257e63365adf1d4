"""What is shown on a GPU of kernels that were built without one: its host half, its judgement, and that its cases can fail."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from chord_jit import cli, knobs
from chord_jit.jit import engine
from chord_jit.reference import grouped, indexed
from chord_jit.schedules.deployment import Deployment
from tests.toy.family import spec
from tests.toy.fixtures import fake, place
from tools import show_prebuilt

__all__ = ["fake", "place"]
SMALL = Deployment(128, 64, 8, 2, ep=2)
GOOD = {
    "counters": {"compiles": 0, "failures": 0, "hits": 9, "loads": 9}, "missing_parts": 5, "cases": [{"error": 0.002, "kept": True}],
}  # fmt: skip


class Calls:
    """The public calls on the CPU, by the references; ``spoil`` breaks every result."""

    def __init__(self, spoil=lambda out: None):
        def of(reference):
            def call(*arguments, out, **more):
                wanted = reference(*arguments, **more)
                out.copy_(torch.where(wanted.isnan(), out.double(), wanted))
                spoil(out)

            return call

        self.indexed, self.contiguous, self.masked = of(indexed.indexed), of(grouped.contiguous), of(grouped.masked)

    def block_m_for(self, weight, expected_rows, *, swiglu):
        return 8


def test_every_call_and_projection_is_compared():
    found = list(show_prebuilt.results(SMALL, "cpu", Calls()))
    assert {(case["case"].split()[0], case["case"].split()[1]) for case in found} == {
        (call, name) for call in ("indexed", "contiguous", "masked") for name in ("gate/up", "down")
    }
    assert len({case["case"] for case in found}) == len(found) == 2 * (3 + 2 * 3 + 2)
    assert all(case["error"] < 0.005 and case["kept"] for case in found)
    assert show_prebuilt.proven({**GOOD, "cases": found})


@pytest.mark.parametrize("spoil", [lambda out: out.mul_(1.05), lambda out: out.nan_to_num_(0.0), lambda out: out[:1].fill_(float("nan"))])
def test_a_wrong_result_proves_nothing(spoil):
    found = list(show_prebuilt.results(SMALL, "cpu", Calls(spoil)))
    assert not show_prebuilt.proven({**GOOD, "cases": found})


@pytest.mark.parametrize(
    "other",
    [
        {"failed": "no GPU"}, {"cases": []}, {"missing_parts": 4}, {"counters": {**GOOD["counters"], "compiles": 1}},
        {"counters": {**GOOD["counters"], "hits": 0}}, {"counters": {**GOOD["counters"], "loads": 0}},
    ],
    ids=str,
)  # fmt: skip
def test_less_proves_nothing(other):
    assert show_prebuilt.proven(GOOD) and not show_prebuilt.proven({**GOOD, **other})


@pytest.fixture
def archive(fake, place, tmp_path):
    engine.build(spec(1))
    engine.build(spec(2))
    assert cli.main(["cache", "export", str(tmp_path / "kernels.tar")]) == 0
    return tmp_path / "kernels.tar"


def test_the_archive_becomes_a_read_only_folder(archive, tmp_path):
    assert show_prebuilt.unpack(archive, tmp_path / "fresh") == 2
    with knobs.scope(CHORD_CACHE_DIR=show_prebuilt.NOWHERE, CHORD_PREBUILT=str(tmp_path / "fresh")):
        engine.forget()
        entry = engine.build(spec(1), SimpleNamespace(compile=None))
    assert entry.origin == "hit"
    assert all(path.stat().st_mode & 0o222 == 0 for path in (tmp_path / "fresh").rglob("*"))


def test_a_damaged_archive_is_refused(archive, capsys):
    archive.write_bytes(archive.read_bytes()[:6000])
    assert show_prebuilt.main([str(archive)]) == 2
    assert "remedy" in capsys.readouterr().err


def test_without_a_gpu_it_fails_in_the_words_of_cuda(archive, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    capsys.readouterr()
    assert show_prebuilt.main([str(archive)]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["kernels"] == 2 and not shown["ok"] and "CUDA" in shown["failed"]
