"""The real compilers on the toy: no GPU is needed to compile for one."""

from __future__ import annotations

import json
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from chord_jit import assets, knobs
from chord_jit.errors import CompileError, ToolchainError, UnsupportedDeviceError
from chord_jit.jit import compiler, counters, elf, engine, toolchain
from chord_jit.jit.nvcc import Nvcc
from chord_jit.jit.nvrtc import Nvrtc
from tests.toy.family import ASSETS, spec

HEADER = """#pragma once
#include <cutlass/arch/barrier.h>
#include <cuda_bf16.h>
namespace { __device__ float hidden[64]; }
namespace chord {
struct ToyAddParams { const float* a; const float* b; float* out; long long count; };
template <typename Config> __device__ void toy_add(const ToyAddParams& params) {
  hidden[threadIdx.x] += params.a[0];
  cutlass::arch::NamedBarrier::sync(Config::kThreads, 1);
  params.out[0] = hidden[Config::kThreads - 1 - threadIdx.x] * Config::kScale;
}
}
"""


def mixed_tree(folder: Path) -> Path:
    """Assets whose kernel takes all that could carry a path or a chance name: CUTLASS, an unnamed namespace."""
    shutil.copytree(ASSETS / "templates", folder / "templates")
    header = folder / "include/chord/kernels/toy_add.cuh"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER)
    return folder


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_v28_nvrtc_gives_a_cubin_with_facts(place, arch):
    entry = engine.build(spec(arch=arch))
    assert elf.kernels(entry.cubin) == [entry.symbol] == ["chord_toy_add"]
    assert 0 < entry.facts["registers"] < 64 and entry.facts["spill_bytes"] == entry.facts["stack_bytes"] == 0
    assert entry.origin == "compiled" and counters.counters().compiles == 1 and counters.counters().compile_seconds > 0
    engine.forget()
    again = engine.build(spec(arch=arch))
    assert (again.origin, again.cubin, again.facts) == ("hit", entry.cubin, entry.facts) and counters.counters().compiles == 1


def test_v27_two_checkouts_give_the_same_bytes(tmp_path):
    """Nothing of the machine reaches the cubin: no path, no time, no chance name."""
    images = []
    for name in ("one", "another/and a blank/deeper"):
        with assets.scope(mixed_tree(tmp_path / name)):
            source = engine.key_of(spec()).source
            images.append(compiler.current().compile(compiler.request(spec(), source)).cubin)
    assert images[0] == images[1]
    assert str(tmp_path).encode() not in images[0] and b"site-packages" not in images[0]


def test_refused_source_shows_the_log_with_the_program_name(place):
    request = replace(compiler.request(spec(), ""), source="int x = missing;")
    with pytest.raises(CompileError, match="missing") as caught:
        compiler.current().compile(request)
    assert re.search(r"^toy_add.cu\(1\): error", caught.value.log, re.MULTILINE)
    assert caught.value.values["version"] == toolchain.discover().compiler.version


def test_v29_unknown_target_is_refused_before_the_compiler(fake):
    with pytest.raises(UnsupportedDeviceError, match="sm_120"):
        engine.build(spec(arch="sm_120"))
    assert fake.compiles() == []


def test_another_nvrtc_in_the_process_is_refused(place):
    found = toolchain.discover()
    other = Nvrtc(replace(found, compiler=replace(found.compiler, version="12.9.86")))
    with pytest.raises(ToolchainError, match="loaded=13.0") as caught:
        other.compile(compiler.request(spec(), "int x;"))
    assert "12.9.86" in str(caught.value)


@pytest.mark.parametrize("status, error", [
    ("OUT_OF_MEMORY", ToolchainError), ("INTERNAL_ERROR", ToolchainError), ("COMPILATION", CompileError),
])
def test_only_a_refused_source_is_nvrtcs_refusal(place, monkeypatch, status, error):
    """Whatever else ends a compile says nothing about the source, so it is asked again."""
    from cuda.bindings import nvrtc

    answer = getattr(nvrtc.nvrtcResult, f"NVRTC_ERROR_{status}")
    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", lambda *given: (answer,))
    with pytest.raises(error, match=f"NVRTC_ERROR_{status}"):
        compiler.current().compile(compiler.request(spec(), "the source"))


def test_nvrtc_without_headers_says_what_is_missing(place):
    found = toolchain.discover()
    with pytest.raises(ToolchainError, match="missing CUTLASS headers"):
        Nvrtc(replace(found, cutlass=replace(found.cutlass, path=None))).compile(compiler.request(spec(), "int x;"))


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A stand-in for nvcc that writes down how it was called; its folder has a blank in its name."""
    path = tmp_path / "tool kit" / "nvcc"
    path.parent.mkdir()
    path.write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "$word"; done > "$(dirname "$0")/words"\nenv > "$(dirname "$0")/environment"\n'
        'cat toy_add.cu > kernel.cubin\necho "$STATUS says nvcc" >&2\nexit ${STATUS:-0}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH"):
        monkeypatch.setenv(name, "-unwanted")
    found = toolchain.discover()
    return Nvcc(replace(found, kind="nvcc", compiler=replace(found.compiler, path=path)))


def test_v27_nvcc_gets_a_list_of_words_and_a_quiet_environment(script, tmp_path):
    request = replace(compiler.request(spec(), "the source"), includes=(tmp_path / "my headers",))
    assert script.compile(request).cubin == b"the source"
    folder = script.toolchain.compiler.path.parent
    words = (folder / "words").read_text().splitlines()
    assert f"-I{tmp_path / 'my headers'}" in words and set(compiler.flags("nvcc", "sm_90a")) < set(words)
    assert words[-3:] == ["-o", "kernel.cubin", "toy_add.cu"]
    assert "-unwanted" not in (folder / "environment").read_text()


def test_v11_compilers_share_no_folder(script, place, tmp_path, monkeypatch):
    """No precompiled headers, and whatever a compiler leaves behind lies in a folder that no other one sees."""
    assert not any("pch" in word for kind in ("nvrtc", "nvcc") for word in compiler.flags(kind, "sm_90a"))
    path = script.toolchain.compiler.path
    path.write_text('#!/bin/sh\necho "$PWD $(stat -c %a .)" >> "$(dirname "$0")/folders"\nsleep 0.2\ntouch kernel.cubin kernel_0.pch\n')
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: script.compile(compiler.request(spec(), "the source")), range(2)))
    folders, modes = zip(*(line.rsplit(" ", 1) for line in (path.parent / "folders").read_text().splitlines()), strict=True)
    assert len(set(folders)) == 2 and set(modes) == {"700"} and not any(Path(folder).exists() for folder in folders)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "here"))
    engine.build(spec())
    assert list((tmp_path / "here").iterdir()) == []


def test_v33_helpers_of_the_device_are_no_kernels(place, tmp_path):
    """A kernel with assert and printf brings symbols that the compiler made; the one that we named is the one recorded."""
    header = mixed_tree(tmp_path / "tree") / "include/chord/kernels/toy_add.cuh"
    helpers = (
        'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);\n'
        'extern "C" __device__ __noinline__ float chord_helper(float x) { return x * x; }\n'
    )
    calls = '  if (params.count < 0) __assertfail("count", "toy", 1, "f", 1);\n  printf("%f", chord_helper(params.a[1]));\n'
    text = header.read_text().replace("namespace chord {", helpers + "namespace chord {")
    header.write_text(text.replace("  params.out[0] =", calls + "  params.out[0] ="))
    with assets.scope(tmp_path / "tree"):
        entry = engine.build(spec())
    assert b"__assertfail" in entry.cubin and b"vprintf" in entry.cubin
    assert elf.kernels(entry.cubin) == ["chord_toy_add"]
    assert json.loads((place.entries()[0] / "entry.json").read_text())["symbol"] == "chord_toy_add"


def test_v24_nvcc_that_fails_shows_its_log(script, monkeypatch):
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(CompileError, match="3 says nvcc") as caught:
        script.compile(compiler.request(spec(), "the source"))
    assert caught.value.values["exit status"] == 3


@pytest.mark.parametrize("problem, says", [
    ("mode", "Permission"), ("signal", "signal 9"), ("tool", "'cicc' died due to signal 9"), ("gone", "No such file"),
])
def test_nvcc_that_does_not_finish_is_no_refusal_of_the_source(script, problem, says):
    """So it is asked again: only refusals are remembered."""
    path = script.toolchain.compiler.path
    if problem == "mode":
        path.chmod(0o600)
    elif problem == "signal":
        path.write_text("#!/bin/sh\nkill -9 $$\n")
    elif problem == "tool":
        path.write_text("#!/bin/sh\necho \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2\nexit 9\n")
    else:
        path.unlink()
    with pytest.raises(ToolchainError, match=says) as caught:
        script.compile(compiler.request(spec(), "the source"))
    assert caught.value.values["nvcc"] == path and caught.value.remedy


def test_the_knob_chooses_the_compiler(place):
    assert isinstance(compiler.current(), Nvrtc)
    with knobs.scope(CHORD_COMPILER="nvcc"):
        assert isinstance(compiler.current(), Nvcc)


def test_real_nvcc_builds_the_toy(place):
    with knobs.scope(CHORD_COMPILER="nvcc"):
        if toolchain.discover().missing or not shutil.which("g++"):
            pytest.skip("no nvcc with a host compiler here")
        entry = engine.build(spec())
    assert elf.kernels(entry.cubin) == ["chord_toy_add"] and entry.facts["registers"] > 0
    assert engine.build(spec()).digest != entry.digest
