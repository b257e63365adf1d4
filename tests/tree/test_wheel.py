"""The wheel on its own: built, installed into a fresh environment, used from another folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from chord_jit.version import VERSION

ROOT = Path(__file__).resolve().parents[2]

#: Run by the fresh environment: renders every template and compiles it for sm_90a into a cache of its own.
COMPILE_EVERYTHING = """
import sys
from pathlib import Path
import chord_jit
from chord_jit import assets, device
from chord_jit.bench.reader import FORMS
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY
from chord_jit.jit import engine
from chord_jit.jit.render import render
from chord_jit.rows.kernels import ALL

installed = Path(chord_jit.__file__).parent
assert installed.is_relative_to(sys.prefix), installed
assert assets.folder("templates").is_relative_to(installed) and assets.folder("include").is_relative_to(installed)

problem = FAMILY.problem(device.target("sm_90a"), 8, 512, 1024, 4.0, interleaved=True, swiglu=True)
many = GROUPED.problem(device.target("sm_90a"), 8, 512, 1024, 256.0, layout="offsets", interleaved=True, swiglu=True)
short = FAMILY.problem(device.target("sm_90a"), 8, 512, 256, 256.0)
resident = next(one for one in FAMILY.candidates(short) if one.kernel == "w4a16_resident")
kernels = (
    FAMILY.spec(problem, FAMILY.schedule(problem)), GROUPED.spec(many, GROUPED.schedule(many)), FAMILY.spec(short, resident),
    FORMS[0].spec("sm_90a"), *(kinds[0].spec("sm_90a") for kinds in ALL.values()),
)
specs = {spec.stem: spec for spec in kernels}
assert set(specs) == {path.name.removesuffix(".cu.j2") for path in assets.folder("templates").glob("*.cu.j2")}
for stem in sorted(specs):
    assert specs[stem].symbol in render(specs[stem])
    print(stem, len(engine.build(specs[stem]).cubin))
"""


def run(*command: object, **keywords) -> subprocess.CompletedProcess:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, **keywords)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the source distribution as an installer would."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory) -> Path:
    """The interpreter of a new environment with the wheel; its dependencies are lent by the one that runs the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--no-cache-dir", wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    Path(site, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"chord_jit-{VERSION}.dist-info/METADATA").decode()
    own = {f"chord_jit/{path.relative_to(ROOT / 'chord_jit')}" for path in (ROOT / "chord_jit").rglob("*.py")}
    own |= {f"chord_jit/{path.relative_to(ROOT / 'chord_jit')}" for path in (ROOT / "chord_jit").rglob("*.json")}
    for name in ("templates", "include"):
        own |= {f"chord_jit/_assets/{path.relative_to(ROOT)}" for path in (ROOT / name).rglob("*") if path.is_file()}
    assert {name for name in names if ".dist-info/" not in name} == own
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert f"Version: {VERSION}" in metadata and "License-Expression: Apache-2.0" in metadata


def test_every_template_compiles_from_the_installed_wheel(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORD_CACHE_DIR", str(tmp_path / "cache"))
    result = run(fresh, "-c", COMPILE_EVERYTHING, cwd=tmp_path)
    sizes = dict(line.split() for line in result.stdout.splitlines())
    assert sizes and all(int(size) > 1000 for size in sizes.values())


def test_the_console_script_answers(fresh, tmp_path):
    assert run(fresh.with_name("chord"), "--version", cwd=tmp_path).stdout.strip() == f"chord_jit {VERSION}"
    assert run(fresh, "-m", "chord_jit", "--version", cwd=tmp_path).stdout.strip() == f"chord_jit {VERSION}"
