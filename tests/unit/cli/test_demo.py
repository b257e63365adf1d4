"""``chord demo`` without a GPU: the real path but for the launch, and entries that a GPU machine will look up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chord_jit import cli, device, knobs
from chord_jit.cli import demo, demo_layer
from chord_jit.families.indexed import FAMILY
from chord_jit.formats.checkpoint import MoEWeights, load_moe_layer
from chord_jit.formats.w4a16 import PackedW4A16, pack_w4a16
from chord_jit.jit import counters
from chord_jit.jit.key import key_of

SIZES = ["--hidden", "256", "--intermediate", "96", "--experts", "6", "--top-k", "2", "--tokens", "5", "--seed", "11"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One demo with a kept checkpoint and its own cache: exit code, report, folder of the checkpoint, cache root."""
    folder = tmp_path_factory.mktemp("demo")
    report = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, knobs.scope(CHORD_CACHE_DIR=str(folder / "cache")):
        patch.setattr(device, "present", lambda: False)
        with open(report, "w") as out:
            patch.setattr("sys.stdout", out)
            code = cli.main(["demo", *SIZES, "--folder", str(folder / "model"), "--json"])
    return code, json.loads(report.read_text()), folder / "model", folder / "cache"


def test_every_check_passes(ran):
    code, report, _, _ = ran
    assert code == 0 and report["gpu"] is False and report["arch"] == "sm_90a"
    assert [check["passed"] for check in report["checks"]] == [True] * 4
    exact, *rounded = [check["error"] for check in report["checks"]]
    assert exact == 0 and all(1e-4 < error < 6e-3 for error in rounded), "BF16 outputs cannot equal FP64"


def test_it_says_what_ran_and_what_did_not(ran):
    _, report, _, cache = ran
    assert "no kernel ran" in report["note"] and "compiled for sm_90a" in report["note"] and str(cache) in report["note"]
    assert report["compiled"] == len(report["kernels"]) == 2
    assert all(kernel["spilled bytes"] == 0 for kernel in report["kernels"])


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_kernels_that_could_not_be_kept_are_not_compiled(monkeypatch, capsys):
    """Without a GPU nothing else comes of them."""
    monkeypatch.setattr(device, "present", lambda: False)
    before = counters.counters()
    with knobs.scope(CHORD_CACHE_DIR="/dev/null/cache"):
        assert cli.main(["demo", *SIZES]) == 2
    assert "the cache must be writable" in capsys.readouterr().err and counters.counters() == before


def test_the_note_says_where_the_kernels_lie():
    """Wheels and folders of prebuilt kernels have some, and a disk that is full has none."""
    facts, report = device.target("sm_90a"), SimpleNamespace(compiled=1, hit=1)
    lying = demo._plain_words(False, facts, report, {Path("/wheel"), Path("/cache")})
    assert "1 compiled now, 1 found; they lie in /cache, /wheel" in lying and "nothing is compiled there" in lying
    for gpu in (False, True):
        lost = demo._plain_words(gpu, facts, report, {Path("/cache"), None})
        assert "not all could be kept" in lost and "they lie" not in lost and "nothing is compiled" not in lost


def test_the_checkpoint_is_kimis(ran):
    _, _, model, _ = ran
    config = json.loads((model / "config.json").read_text())
    assert config["quantization_config"]["format"] == "pack-quantized"
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.1.mlp.experts.5.down_proj.weight_packed" in index and len(set(index.values())) == 2


def test_a_gpu_machine_looks_up_the_same_entries(ran, monkeypatch):
    """The facts that an H200 reports of itself differ from the nominal ones in name and cache size; the keys do not."""
    _, report, model, cache = ran
    reported = replace(device.target("sm_90a"), name="NVIDIA H200 NVL", l2_bytes=50 << 20)
    step = demo_layer.DecodeStep(load_moe_layer(model, 1), 5, 2, 11, reported)
    keys = [key_of(FAMILY.spec(problem, FAMILY.schedule(problem))) for problem in step.problems()]
    assert [key.digest[:12] for key in keys] == [kernel["key"] for kernel in report["kernels"]]
    with knobs.scope(CHORD_CACHE_DIR=str(cache)):
        from chord_jit.jit import engine

        engine.forget()
        assert [engine.build(FAMILY.spec(problem, FAMILY.schedule(problem))).origin for problem in step.problems()] == ["hit", "hit"]


def test_one_wrong_bit_in_the_packed_layer_is_counted(ran):
    _, _, model, _ = ran
    weights = load_moe_layer(model, 1)
    assert demo_layer.differing_bits(model, weights) == 0
    weights.down.data[3, 0, 0, 100] ^= 0x30
    assert demo_layer.differing_bits(model, weights) == 1


def test_a_result_that_is_too_far_is_seen(ran):
    _, _, model, _ = ran
    step = demo_layer.DecodeStep(load_moe_layer(model, 1), 5, 2, 11, device.target("sm_90a"))
    inner, routed, out = step.run_reference()
    bounds = [bound for *_, bound in step.stages()]
    right = step.compare((inner, routed, out))
    assert all(error <= bound for error, bound in zip(right, bounds, strict=True))
    swapped = torch.roll(routed, 1, 0)
    assert step.compare((inner, swapped, out))[1] > 0.5
    assert step.compare((inner, routed, out * 1.02))[2] > bounds[2]


def random_layer(hidden: int, intermediate: int, experts: int) -> MoEWeights:
    def packed(n: int, k: int, **form) -> PackedW4A16:
        codes = torch.randint(1, 16, (experts, n, k), dtype=torch.uint8)
        return pack_w4a16(codes, torch.rand(experts, n, k // 32).add(0.5).div(4 * k**0.5).bfloat16(), **form)

    return MoEWeights(packed(2 * intermediate, hidden, interleave=True), packed(hidden, intermediate))


@pytest.mark.parametrize("hidden, intermediate, experts, top_k", [(32, 32, 1, 1), (32, 32, 4, 2), (128, 32, 8, 1), (32, 128, 8, 8)])
def test_few_outputs_fail_by_no_chance(hidden, intermediate, experts, top_k):
    """One output alone may be off by twice what many are on average, and that is right."""
    for seed in range(60):
        step = demo_layer.DecodeStep(random_layer(hidden, intermediate, experts), 1, top_k, seed, device.target("sm_90a"))
        errors = step.compare(step.run_reference())
        assert all(error <= bound for error, (*_, bound) in zip(errors, step.stages(), strict=True)), f"seed {seed}: {errors}"


@pytest.mark.parametrize("tokens, bounds", [(16, [2.5e-3, 1.8e-3, 6.1e-3]), (2048, [3.0e-3, 2.5e-3, 7.3e-3])])
def test_many_outputs_are_held_to_the_average(tokens, bounds):
    step = demo_layer.DecodeStep(random_layer(1024, 512, 8), tokens, 2, 0, device.target("sm_90a"))
    assert [bound for *_, bound in step.stages()] == pytest.approx(bounds)


def test_a_folder_with_files_is_left_alone(ran, capsys):
    _, _, model, _ = ran
    before = sorted(path.name for path in model.iterdir())
    assert cli.main(["demo", *SIZES, "--folder", str(model)]) == 2
    assert "must be empty" in capsys.readouterr().err
    assert sorted(path.name for path in model.iterdir()) == before


def test_without_compressed_tensors_the_remedy_is_one_that_works(monkeypatch, capsys):
    """The package is installed from its checkout: no index has it."""
    monkeypatch.setitem(sys.modules, "compressed_tensors.compressors", None)
    assert cli.main(["demo", *SIZES]) == 2
    assert "pip install '.[demo]', in the checkout of chord_jit" in capsys.readouterr().err
