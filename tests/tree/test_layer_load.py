"""The measurement of a layer's load: its checkpoint, a small load on the CPU, and its block in the formats page."""

from __future__ import annotations

import json
import time

import pytest
import torch

from chord_jit.formats.checkpoint import load_moe_layers, read_model_shape
from tools import measure_layer_load, record
from tools.layer_load import checkpoint, report
from tools.layer_load.load import HostPeak

# Far more than the rest of a process gives back meanwhile.
_LARGE, _SEEN = 256 << 20, 200 << 20
SIZES = {"hidden": 256, "intermediate": 128, "experts": 10}
RUN = {
    "schema": record.SCHEMA, "date": "2026-12-01T10:00:00+00:00", "commit": "0123456789abcdef", "device": "cuda", "sizes": SIZES,
    "machine": {"gpu": "NVIDIA H200", "driver": "580.1", "cores": 16, "python": "3.11.7"}, "versions": {"torch": "2.11.0"},
    "checkpoint_bytes": 1_268_000_000, "packed_bytes": 1_189_000_000,
    "loads": [
        {"seconds": 2.5, "host_bytes": 40_000_000, "gpu_bytes": 1_230_000_000},
        {"seconds": 1.2, "host_bytes": 30_000_000, "gpu_bytes": 1_231_000_000},
        {"seconds": 1.4, "host_bytes": 30_000_000, "gpu_bytes": 1_230_000_000},
    ],
}  # fmt: skip


def test_the_checkpoint_is_one_layer_of_equal_experts(tmp_path):
    size = checkpoint.write(tmp_path / "model", **SIZES)
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == ["config.json", "model-00000.safetensors", "model-00008.safetensors", "model.safetensors.index.json"]
    assert read_model_shape(tmp_path / "model").experts == 10 and size > 10 * 3 * 256 * 128 // 2
    weights = load_moe_layers(tmp_path / "model")[1]
    for packed in (weights.gate_up, weights.down):
        assert packed.experts == 10 and all(torch.equal(packed.data[0], data) for data in packed.data) and packed.data.any()


def test_a_small_load_is_measured_and_written(tmp_path, capsys):
    out = tmp_path / "runs" / "load.json"
    words = [f"--{name}={value}" for name, value in SIZES.items()]
    assert measure_layer_load.main([str(out), "--commit", "abc", "--device", "cpu", "--repeat", "2", *words]) == 0
    run = json.loads(out.read_text())
    assert len(run["loads"]) == 2 and all(load["seconds"] > 0 and load["gpu_bytes"] is None for load in run["loads"])
    assert run["sizes"] == SIZES and run["packed_bytes"] == 10 * 3 * 256 * 128 * 9 // 16
    assert capsys.readouterr().out.strip() == report.block(run) and "| - |" in report.block(run)


def test_host_memory_that_is_held_to_the_end_is_seen_without_a_look_in_between(monkeypatch):
    monkeypatch.setattr("tools.layer_load.load._EVERY_SECONDS", 600)
    with HostPeak() as host:
        held = torch.ones(_LARGE // 4)
    assert held.nbytes == _LARGE and host.bytes >= _SEEN


def test_host_memory_that_is_given_back_is_seen_while_it_is_held():
    with HostPeak() as host:
        held = torch.ones(_LARGE // 4)
        until = time.monotonic() + 60
        while host.bytes < _SEEN and time.monotonic() < until:
            time.sleep(0.001)
        del held
    assert host.bytes >= _SEEN


@pytest.mark.parametrize(("seconds", "verdict"), [(1.4, "met"), (2.0, "**missed**")])
def test_the_block_shows_the_median_and_the_first_load(seconds, verdict):
    loads = [RUN["loads"][0], *({**load, "seconds": seconds} for load in RUN["loads"][1:])]
    shown = report.block({**RUN, "loads": loads})
    assert shown.splitlines()[-1] == f"| 1268 MB | 1189 MB | {seconds:.2f} | 2.50 | {verdict} | 40 MB | 42 MB |"
    assert "NVIDIA H200" in shown and "10 experts, hidden 256" in shown


def test_the_page_says_so_while_nothing_is_recorded():
    assert "measure_layer_load.py" in report.block(None)
