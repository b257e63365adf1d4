"""The wheel of prebuilt kernels: with it nothing is compiled, without compiler, headers, a writable home or a lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chord_jit import knobs, plan
from chord_jit.device import target
from chord_jit.jit import compiler
from chord_jit.schedules.deployment import Deployment
from chord_jit.version import VERSION
from tests.toy.fake import FakeCompiler
from tests.toy.fixtures import forget
from tools import make_cubin_wheel

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"hidden": 1024, "intermediate": 512, "experts": 16, "top_k": 4}

#: A machine with nothing to compile with: every place that is searched for a toolchain is empty.
OFFLINE = """
import json, sys, warnings
from chord_jit.jit import counters, engine, places, toolchain
from chord_jit.device import target
from chord_jit.errors import ToolchainError
from chord_jit.jit.spec import KernelSpec
for name in ("wheel_includes", "wheel_libraries", "cutlass_includes"):
    setattr(places, name, lambda: ())
places.cuda_includes = places.toolkit_libraries = lambda roots: ()
sys.modules["cuda.bindings.nvrtc"] = None
assert len(toolchain.discover().missing) == 5
from chord_jit import plan
from chord_jit.schedules.deployment import Deployment
report = plan.plan(Deployment(**json.loads(sys.argv[1])), [target("sm_90a")]).warm_up(jobs=1)
numbers = counters.counters()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        engine.build(plan.plan(Deployment(2048, 512, 16, 4), [target("sm_90a")]).kernels[0].spec)
        missing = ""
    except ToolchainError as error:
        missing = str(error)
print(json.dumps([report.compiled, report.hit, report.failed, numbers.compiles, missing, [str(one.message) for one in said]]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def build(folder: Path) -> Path:
    """A wheel made by the tool, in this process, with a compiler that is quick."""
    (folder / "list.json").write_text(json.dumps({"archs": ["sm_90a"], "deployments": [MODEL, {**MODEL, "tp": 2}]}))
    forget()
    with knobs.scope(CHORD_CACHE_DIR=str(folder / "cache")), compiler.scope(FakeCompiler(folder / "ledger")):
        assert make_cubin_wheel.main(["toy", "--list", str(folder / "list.json"), "--out", str(folder / "dist"), "--jobs", "2"]) == 0
    forget()
    (made,) = (folder / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    site = tmp_path_factory.mktemp("site")
    options = ["--no-index", "--no-deps", "--no-cache-dir", "--quiet", "--target", str(site)]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


def test_contents(wheel):
    assert wheel.name == f"chord_jit_cubins_toy-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = json.loads(archive.read("chord_jit_cubins/toy/about.json"))
    own = [name for name in names if ".dist-info/" not in name]
    assert all(name.startswith("chord_jit_cubins/toy/") for name in own) and not any(name.endswith(".py") for name in names)
    assert about["chord_jit"] == VERSION and len(about["deployments"]) == 2
    assert len(own) == 3 * about["kernels"] + 1


def test_the_same_kernels_give_the_same_wheel(wheel, tmp_path):
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


def test_with_the_wheel_alone_nothing_is_compiled(installed, tmp_path):
    """No compiler, no header, no writable home, cache or locks; and a kernel that the wheel lacks says what is missing."""
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, installed))), "HOME": "/dev/null", "PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "",
        "XDG_CACHE_HOME": "/dev/null/cache", "CHORD_LOCK_DIR": "/dev/null/locks",
    }
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, json.dumps(MODEL)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    compiled, hit, failed, compiles, missing, said = json.loads(done.stdout)
    kernels = len(plan.plan(Deployment(**MODEL), [target("sm_90a")]).kernels)
    assert (compiled, hit, failed, compiles) == (0, kernels, 0, 0)
    assert "NVRTC" in missing and "nvidia-cutlass" in missing and "CHORD_PREBUILT" in missing and str(installed) in missing


#: arguments, content of the list, what the refusal names
REFUSED = (
    (["Toy!"], None, "lower-case"),
    (["toy"], None, "exactly one of --config and --list"),
    (["toy", "--config", "/no/such/config.json"], None, "must exist"),
    (["toy", "--list", "LIST"], {"archs": ["sm_80"], "deployments": [MODEL]}, "as in --help"),
    (["toy", "--list", "LIST"], {"archs": ["sm_90a"], "deployments": []}, "as in --help"),
    (["toy", "--list", "LIST"], {"archs": ["sm_90a"], "deployments": [{"hidden": 1}]}, "as in --help"),
    (["toy", "--list", "LIST"], {"archs": ["sm_90a"], "deployments": [{**MODEL, "ep": 5}]}, "divide evenly"),
)


@pytest.mark.parametrize("argv, content, named", REFUSED, ids=[named for *_, named in REFUSED])
def test_refusals(argv, content, named, tmp_path, capsys):
    (tmp_path / "list.json").write_text(json.dumps(content))
    argv = [str(tmp_path / "list.json") if part == "LIST" else part for part in argv]
    assert make_cubin_wheel.main([*argv, "--out", str(tmp_path / "dist")]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "dist").exists()


def test_a_toolchain_of_other_versions_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(make_cubin_wheel.schema, "PINNED_CUTLASS", "9.9.9")
    (tmp_path / "list.json").write_text(json.dumps({"archs": ["sm_90a"], "deployments": [MODEL]}))
    assert make_cubin_wheel.main(["toy", "--list", str(tmp_path / "list.json"), "--out", str(tmp_path / "dist")]) == 2
    message = capsys.readouterr().err
    assert "9.9.9" in message and "pip install ., in the checkout of chord_jit and in a fresh environment" in message


def test_a_kernel_that_fails_makes_no_wheel(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps({"archs": ["sm_90a"], "deployments": [MODEL]}))
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache")), compiler.scope(FakeCompiler(tmp_path / "ledger", behaviour="refuse")):
        assert make_cubin_wheel.main(["toy", "--list", str(tmp_path / "list.json"), "--out", str(tmp_path / "dist")]) == 1
    forget()
    assert not (tmp_path / "dist").exists()
