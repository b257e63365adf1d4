"""The key holds everything that a cubin depends on, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit import assets, knobs
from chord_jit.errors import ToolchainError, UnsupportedDeviceError
from chord_jit.jit import compiler, key, schema, toolchain
from chord_jit.jit.key import digest_of, key_of
from chord_jit.jit.spec import KernelSpec
from tests.toy.family import ASSETS, spec

ROOT = Path(__file__).resolve().parents[3]
BASE = KernelSpec("toy_add", (("kThreads", 256), ("kScale", 1)), "sm_90a")

SPECS = {
    "arch": replace(BASE, arch="sm_100a"),
    "value": replace(BASE, config=(("kThreads", 256), ("kScale", 2))),
    "type": replace(BASE, config=(("kThreads", 256), ("kScale", True))),
    "name": replace(BASE, config=(("kThreads", 256), ("kScales", 1))),
    "order": replace(BASE, config=(("kScale", 1), ("kThreads", 256))),
    "more": replace(BASE, config=(*BASE.config, ("kMore", 0))),
    "stem": replace(BASE, stem="toy_copy"),
}


@pytest.fixture
def tree(tmp_path):
    """A copy of the toy's assets that a test may change, with the template under a second stem."""
    folder = tmp_path / "toy"
    shutil.copytree(ASSETS / "templates", folder / "templates")
    shutil.copytree(ASSETS / "include", folder / "include")
    shutil.copy(folder / "templates/toy_add.cu.j2", folder / "templates/toy_copy.cu.j2")
    with assets.scope(folder):
        yield folder


@pytest.mark.parametrize("change", SPECS)
def test_v15_every_part_of_the_spec_counts(tree, change):
    assert {field.name for field in fields(KernelSpec)} == {"stem", "config", "arch"}, "a new field needs its changes in SPECS"
    assert key_of(SPECS[change]).digest != key_of(BASE).digest


def test_v15_every_part_of_the_toolchain_counts(tree, monkeypatch):
    found = toolchain.discover()
    before = key_of(BASE)
    other = {name: replace(getattr(found, name), version="0.1") for name in ("compiler", "cuda_headers", "cccl", "cutlass")}
    # Headers below crt/ state no version: they come with the compiler, and the pins of the wheels hold them together.
    assert {field.name for field in fields(found)} == {"kind", "crt", *other}, "a new part needs a field of the key"
    other = {"kind": replace(found, kind="nvcc"), **{name: replace(found, **{name: part}) for name, part in other.items()}}
    digests = {before.digest}
    for name, changed in other.items():
        monkeypatch.setattr(toolchain, "discover", lambda changed=changed: changed)
        digests.add(key_of(BASE).digest)
        assert len(digests) == 1 + list(other).index(name) + 1, name


def test_v15_every_option_counts(tree, monkeypatch):
    original = compiler.flags
    digests = {key_of(BASE).digest}
    for change in (lambda flags: flags[1:], lambda flags: (*flags, "-use_fast_math"), lambda flags: flags[::-1]):
        monkeypatch.setattr(compiler, "flags", lambda kind, arch, change=change: change(original(kind, arch)))
        digests.add(key_of(BASE).digest)
    assert len(digests) == 4


def test_the_schema_counts(tree, monkeypatch):
    before = key_of(BASE).digest
    monkeypatch.setattr(schema, "KEY_VERSION", schema.KEY_VERSION + 1)
    assert key_of(BASE).digest != before


@pytest.mark.parametrize("name", ["templates/toy_add.cu.j2", "include/chord/kernels/toy_add.cuh", "include/chord/toy_params.cuh"])
def test_v16_v18_content_counts_and_times_do_not(tree, name):
    before, path = key_of(BASE).digest, tree / name
    os.utime(path, (1, 1))
    assert key_of(BASE).digest == before
    path.write_text(path.read_text() + "\n")
    os.utime(path, (1, 1))
    assert key_of(BASE).digest != before


def test_a_header_that_is_not_reached_does_not_count(tree):
    before = key_of(BASE).digest
    (tree / "include/chord/unused.cuh").write_text("#pragma once\n")
    assert key_of(BASE).digest == before


def test_headers_are_reached_through_every_form_of_include(tree):
    (tree / "include/chord/kernels/near.cuh").write_text("// near\n")
    (tree / "include/chord/far.cuh").write_text("// far\n")
    (tree / "include/chord/kernels/toy_add.cuh").write_text('#if 0\n#  include <chord/far.cuh>\n#endif\n#include "near.cuh"\n')
    lines = key_of(BASE).fields["headers"].splitlines()
    assert [line.split()[0] for line in lines] == ["chord/far.cuh", "chord/kernels/near.cuh", "chord/kernels/toy_add.cuh"]


def test_headers_that_include_each_other_end(tree):
    (tree / "include/chord/toy_params.cuh").write_text('#pragma once\n#include "chord/kernels/toy_add.cuh"\n')
    assert len(key_of(BASE).fields["headers"].splitlines()) == 2


def test_a_missing_header_is_named_with_its_includer(tree):
    (tree / "include/chord/toy_params.cuh").unlink()
    with pytest.raises(ToolchainError, match="chord/toy_params.cuh") as caught:
        key_of(BASE)
    assert caught.value.values["included by"] == "chord/kernels/toy_add.cuh"


def test_an_unknown_target_is_refused(tree):
    with pytest.raises(UnsupportedDeviceError, match="sm_89"):
        key_of(replace(BASE, arch="sm_89"))


def test_fields_are_clear_text_and_give_the_digest(tree):
    found = key_of(BASE)
    assert digest_of(found.fields) == found.digest and len(found.digest) == 64
    assert found.fields["config"] == "kThreads: int = 256\nkScale: int = 1"
    assert not any(str(folder) in text for text in found.fields.values() for folder in (tree, ROOT, Path.home()))


@given(st.dictionaries(st.text(), st.text(), max_size=4), st.dictionaries(st.text(), st.text(), max_size=4))
def test_different_fields_never_share_a_digest(first, second):
    assert (digest_of(first) == digest_of(second)) == (first == second)


def test_text_does_not_move_between_fields():
    assert digest_of({"ab": "c"}) != digest_of({"a": "bc"}) != digest_of({"a": "b", "c": ""})


def test_v18_v21_same_key_from_another_folder_with_another_hash_seed(tmp_path):
    copy = tmp_path / "with a blank" / "copy"
    for name in ("chord_jit", "templates", "include", "tests/toy"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    body = "from chord_jit import assets\nfrom chord_jit.jit.key import key_of\nfrom tests.toy.family import ASSETS, spec\n"
    body += "with assets.scope(ASSETS): print(key_of(spec()).digest)\nimport chord_jit; print(chord_jit.__file__)"
    seen = []
    for folder, seed in ((ROOT, "1"), (copy, "2")):
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": seed, "CHORD_JIT_UNRELATED": seed}
        done = subprocess.run([sys.executable, "-c", body], cwd=folder, env=environment, capture_output=True, text=True, check=True)
        seen.append(done.stdout.split("\n"))
        assert seen[-1][1].startswith(str(folder))
    assert seen[0][0] == seen[1][0] == _digest_here()


def test_a_machine_without_any_toolchain_has_the_same_key(place, monkeypatch):
    """What is built on the machine with the pinned compiler is found on a machine that has none."""
    before = key_of(spec())
    monkeypatch.setattr(toolchain.places, "_package", lambda name: ())
    monkeypatch.setattr(toolchain.places, "_DEFAULT_TOOLKIT", "/nonexistent/cuda")
    with knobs.scope(CUDA_HOME="/nonexistent/toolkit"):
        toolchain._discover.cache_clear()
        assert len(toolchain.discover().missing) == 5
        assert key_of(spec()).fields == before.fields
    toolchain._discover.cache_clear()


def _digest_here() -> str:
    with assets.scope(ASSETS):
        return key.key_of(spec()).digest
