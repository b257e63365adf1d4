"""``chord warmup``: every kernel of a deployment, once, with a report; bad models are refused before any compile."""

from __future__ import annotations

import copy
import json
import re

import pytest

from chord_jit import cli, knobs
from chord_jit.jit import compiler, engine, manifest
from tests.toy.fake import FakeCompiler

MODEL = {
    "hidden_size": 1024, "moe_intermediate_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False},
            }
        },
    },
}  # fmt: skip

#: Extra arguments, a change of the model (path to value), and what the refusal must name.
REFUSED = (
    (["--ep", "5"], (), None, "experts must divide evenly"),
    (["--tp", "3"], (), None, "intermediate must divide evenly"),
    (["--tp", "0"], (), None, "ranks=0"),
    ([], ("hidden_size",), "wide", "hidden_size must be"),
    ([], ("n_routed_experts",), 0, "n_routed_experts must be"),
    ([], ("quantization_config", "format"), "mxfp4-pack-quantized", "pack-quantized"),
    ([], ("quantization_config", "config_groups", "group_0", "weights", "group_size"), 128, "group_size=128"),
)


@pytest.fixture
def warm(tmp_path, capsys, monkeypatch):
    """Runs the command on a model with a compiler that needs no CUDA; gives exit code, standard output and error."""
    fake = FakeCompiler(tmp_path / "ledger")
    engine.forget()  # A compile that another test was refused stays refused.
    # Somebody may edit the checkout while the tests run, and manifests are then not written.
    monkeypatch.setattr(manifest, "_imported", float("inf"))

    def run(*argv: str, model: dict = MODEL, behaviour: str = "good"):
        config = tmp_path / "config.json"
        config.write_text(json.dumps(model))
        with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "root")), compiler.scope(FakeCompiler(fake.ledger, behaviour=behaviour)):
            code = cli.main(["warmup", str(config), *argv])
        return code, *capsys.readouterr()

    run.fake = fake
    return run


def test_first_everything_is_compiled_then_everything_is_found(warm):
    code, out, progress = warm("--ep", "2", "--json")
    first = json.loads(out)
    assert code == 0 and first["failed"] == 0 and first["hit"] == 0
    assert first["compiled"] == len(first["kernels"]) == len(warm.fake.compiles()) > 2
    assert sum(kernel["problems"] for kernel in first["kernels"]) > len(first["kernels"])
    assert f"{first['compiled']}/{first['compiled']}" in progress
    assert first["manifest"] == "new" and first["per_target"] == {"sm_90a": first["compiled"]} and first["most"] == 40
    code, out, _ = warm("--ep", "2", "--json")
    second = json.loads(out)
    assert code == 0 and second["compiled"] == 0 and second["hit"] == first["compiled"] and second["kernels"] == first["kernels"]
    assert second["manifest"] == "found" and second["seconds"] + second["choosing_seconds"] < 2
    assert len(warm.fake.compiles()) == first["compiled"]


def test_several_targets_at_once(warm):
    code, out, _ = warm("--arch", "sm_90a", "sm_100a", "--json", "--jobs", "1")
    archs = [kernel["arch"] for kernel in json.loads(out)["kernels"]]
    assert code == 0 and set(archs) == {"sm_90a", "sm_100a"}


def test_ranks_and_sm_count_steer_the_shapes(warm):
    def fields(*argv):
        """Of the kernels that know a shape: those that move rows know none."""
        return {kernel["fields"] for kernel in json.loads(warm("--json", *argv)[1])["kernels"] if "kN=" in kernel["fields"]}

    assert all("kN=512 " in text or "kN=1024 " in text for text in fields("--tp", "2"))
    assert fields("--tp", "2").isdisjoint(fields())
    assert not any(re.search(r"\b132\b", text) for text in fields("--sms", "132"))


def test_the_report_for_people(warm):
    code, out, _ = warm()
    assert code == 0 and "w4a16_mma" in out and " compiled, 0 found, 0 failed" in out


def test_a_kernel_that_fails_is_reported_and_exits_with_1(warm):
    code, out, _ = warm("--json", behaviour="refuse")
    report = json.loads(out)
    assert code == 1 and report["failed"] == len(report["kernels"]) == len(report["errors"])
    assert all("please" in error for error in report["errors"])


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_what_could_not_be_kept_is_not_compiled(warm, tmp_path):
    (tmp_path / "root").write_text("no folder")
    code, out, error = warm()
    assert (code, out) == (2, "") and "rule:   the cache must be writable" in error and str(tmp_path / "root") in error
    assert warm.fake.compiles() == []


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_without_a_writable_cache_prebuilt_kernels_are_enough(warm, tmp_path):
    first = json.loads(warm("--json")[1])
    (tmp_path / "root").rename(tmp_path / "prebuilt")
    (tmp_path / "root").write_text("no folder")
    with knobs.scope(CHORD_PREBUILT=str(tmp_path / "prebuilt")):
        code, out, error = warm("--json")
    assert code == 0, error
    assert json.loads(out)["hit"] == first["compiled"] > 2 and json.loads(out)["compiled"] == 0


@pytest.mark.parametrize("argv, path, value, named", REFUSED, ids=[named for *_, named in REFUSED])
def test_refusals(argv, path, value, named, warm):
    model = copy.deepcopy(MODEL)
    if path:
        place = model
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
    code, out, error = warm(*argv, model=model)
    assert (code, out) == (2, "") and named in error
    assert warm.fake.compiles() == []
