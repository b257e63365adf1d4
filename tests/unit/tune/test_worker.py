"""What the measuring process is made of, with the CPU in the GPU's place."""

from __future__ import annotations

import sys

import pytest
import torch

from chord_jit.tune import worker
from tests.unit.tune.fakes import H200


@pytest.fixture
def cpu(monkeypatch):
    place = torch.device("cpu")
    monkeypatch.setattr(worker.torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(worker.torch, "device", lambda kind, index: asked.append((kind, index)) or place)
    monkeypatch.setattr(worker.device, "facts", lambda index: H200)
    monkeypatch.setattr(worker, "WriteFlush", lambda place: "flush")
    asked: list = []
    return asked


def test_values_are_fresh_in_every_process(cpu, monkeypatch):
    benches = []
    monkeypatch.setattr(worker, "measure", lambda bench, *rest: benches.append(bench))
    for _ in range(2):
        worker.work([], None, rounds=7, readers=True, on_step=lambda *step: None)
    assert cpu == [("cuda", 3)] * 2 and len({bench.generator.initial_seed() for bench in benches}) == 2
    assert {(bench.facts, bench.flush, bench.rounds, bench.readers) for bench in benches} == {(H200, "flush", 7, True)}


def test_the_driver_is_the_meters_word_and_unknown_without_nvml(cpu, monkeypatch):
    class Power:
        class Meter:
            def __init__(self, place):
                pass

            def facts(self):
                return {"driver": "580.159.04"}

    monkeypatch.setitem(sys.modules, "chord_jit.bench.power", Power)
    assert worker.driver() == "580.159.04"
    monkeypatch.setitem(sys.modules, "chord_jit.bench.power", None)
    assert worker.driver() == "unknown"
