"""What a deployment wants: few kernels, chosen once; the second warm-up reads a manifest and checks the entries, nothing else."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from chord_jit import api, device, knobs, plan
from chord_jit.device import target
from chord_jit.errors import CompileError, InputError
from chord_jit.families import base, grouped_launch, indexed_launch, kernels
from chord_jit.jit import compiler, engine, manifest, warmup
from chord_jit.rows import kernels as row_kernels
from chord_jit.schedules.deployment import Deployment
from tests.toy.fake import FakeCompiler
from tests.toy.fixtures import forget
from tests.unit.cli.test_warmup import MODEL

SMALL = Deployment(1024, 512, 16, 4)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakeCompiler(tmp_path / "ledger")
    # Somebody may edit the checkout while the tests run, and manifests are then not written.
    monkeypatch.setattr(manifest, "_imported", float("inf"))
    with compiler.scope(fake), knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache")):
        forget()
        yield fake
    forget()


@pytest.mark.parametrize("ranks", [{"ep": 8}, {"tp": 8}], ids=["EP8", "TP8"])
def test_v36_kimi_k2_needs_at_most_forty_kernels(fake, ranks):
    found = plan.plan(Deployment(7168, 2048, 384, 8, **ranks), [target("sm_90a")])
    assert 20 < len(found.kernels) <= plan.MOST_KERNELS == 40
    assert len({one.digest for one in found.kernels}) == len(found.kernels)


def test_v36_the_second_warm_up_chooses_and_keys_nothing(fake, monkeypatch):
    first = plan.plan(SMALL, [target("sm_90a")])
    report = first.warm_up(jobs=1)
    assert not first.known and report.compiled == len(first.kernels) == len(fake.compiles())
    forget()
    for module, name in ((base, "deployment_problems"), (engine, "key_of"), (plan, "key_of"), (warmup.compiler, "request")):
        monkeypatch.setattr(module, name, None)
    second = plan.plan(SMALL, [target("sm_90a")])
    report = second.warm_up(jobs=1)
    assert second.known and second.kernels == first.kernels
    assert (report.compiled, report.hit, report.failed) == (0, len(first.kernels), 0) and report.seconds < 1


@pytest.fixture
def gpu(monkeypatch):
    """What is loaded or bound, on a machine with an H200 that is not there: spec, device, shared memory."""
    seen = []

    def bind(spec, index, threads, shared_bytes, *_):
        seen.append((spec, index, shared_bytes))
        return SimpleNamespace(ctas=132, early=lambda: None)

    def load(spec, index, shared_bytes):
        seen.append((spec, index, shared_bytes))
        return SimpleNamespace(handle=0x1000)

    monkeypatch.setattr(device, "present", lambda: True)
    monkeypatch.setattr(device, "facts", lambda index: target("sm_90a"))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    monkeypatch.setattr(kernels, "bind", bind)
    monkeypatch.setattr(engine, "load", load)
    monkeypatch.setattr(row_kernels, "_launches", {})
    monkeypatch.setattr(plan.slots, "prepare", lambda index: seen.append(("slots", index)))
    for module in (grouped_launch, indexed_launch):
        monkeypatch.setattr(module, "_bound", {})
    return seen


def test_v36_the_second_warm_up_on_a_gpu_chooses_nothing_and_loads_the_same(fake, gpu, monkeypatch):
    report = api.warm_up(SMALL, jobs=1)
    first = set(gpu)
    assert report.compiled == len(first) > 5 and {index for _, index, _ in first} == {3}
    gpu.clear()
    forget()
    for module, name in ((base, "deployment_problems"), (plan, "chosen"), (plan, "prepare")):
        monkeypatch.setattr(module, name, None)
    report = api.warm_up(SMALL, jobs=1)
    assert (report.compiled, report.hit, report.failed) == (0, len(first), 0)
    assert gpu[0] == ("slots", 3) and set(gpu[1:]) == first and len(gpu) == len(first) + 1


def test_a_kernel_of_the_manifest_that_fails_is_reported_and_not_loaded(fake, gpu, monkeypatch, tmp_path):
    model = plan.plan(SMALL, [target("sm_90a")])
    bad = model.kernels[2].spec

    def refuse(spec, *_):
        if spec == bad:
            raise CompileError("compile it", "the source must please", {}, "please it")
        return build(spec, fake)

    build = engine.build
    monkeypatch.setattr(engine, "build", refuse)
    report = api.warm_up(SMALL, jobs=1)
    assert report.failed == 1 and [spec for spec, _ in report.errors] == [bad]
    assert {spec for spec, *_ in gpu[1:]} == {one.spec for one in model.kernels} - {bad}


def test_a_manifest_is_no_promise_of_entries(fake, tmp_path):
    """What was removed or damaged since is compiled again."""
    first = plan.plan(SMALL, [target("sm_90a")])
    first.warm_up(jobs=1)
    forget()
    gone, damaged, *_ = sorted((tmp_path / "cache").glob("*/??/*/kernel.cubin"))
    damaged.write_bytes(b"broken")
    gone.unlink()
    with pytest.warns(match="damaged"):
        report = plan.plan(SMALL, [target("sm_90a")]).warm_up(jobs=1)
    assert (report.compiled, report.hit) == (2, len(first.kernels) - 2)


def test_other_requests_and_other_variables_have_manifests_of_their_own(fake):
    plan.plan(SMALL, [target("sm_90a")])
    assert not plan.plan(SMALL, [target("sm_100a")]).known
    assert not plan.plan(Deployment(1024, 512, 16, 4, ep=2), [target("sm_90a")]).known
    with knobs.scope(CHORD_W4A16_STAGES="3"):
        assert not plan.plan(SMALL, [target("sm_90a")]).known
    assert plan.plan(SMALL, [target("sm_90a")]).known


def test_without_a_name_for_a_manifest_the_kernels_are_chosen(fake, tmp_path, monkeypatch):
    """A file of the package went away while it was read."""
    monkeypatch.setattr(manifest, "_sources", lambda: [("gone", tmp_path / "gone")])
    for _ in range(2):
        found = plan.plan(SMALL, [target("sm_90a")])
        assert not found.known and len(found.kernels) > 5
    assert not (tmp_path / "cache").exists()


def test_a_family_from_outside_is_always_asked(fake, monkeypatch):
    monkeypatch.setitem(base.FAMILIES, "toy", "tests.toy.family")
    monkeypatch.setattr(base, "deployment_problems", lambda model, facts: [])
    for _ in range(2):
        assert plan.plan(SMALL, [target("sm_90a")]) == plan.Plan((), False)


@pytest.mark.parametrize("as_text", [True, False])
def test_warm_up_takes_the_path_of_a_model(fake, tmp_path, monkeypatch, as_text):
    monkeypatch.setattr(device, "present", lambda: False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    report = api.warm_up(str(path) if as_text else path, ep=2, jobs=1)
    wanted = plan.plan(Deployment(1024, 512, 16, 4, ep=2), [target("sm_90a")])
    assert wanted.known and (report.compiled, report.failed) == (len(wanted.kernels), 0)


def test_ranks_belong_to_a_path(fake):
    with pytest.raises(InputError, match="put them into the Deployment"):
        api.warm_up(SMALL, tp=2)
    with pytest.raises(InputError, match="divide evenly"):
        plan.deployment_of(MODEL, ep=5)
    with pytest.raises(InputError, match="must exist"):
        api.warm_up("/no/such/model")
