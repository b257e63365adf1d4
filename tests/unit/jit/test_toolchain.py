"""What is found, where it was searched, and what the errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from chord_jit import assets, device, knobs
from chord_jit.errors import ToolchainError
from chord_jit.jit import compiler, places, schema, toolchain
from chord_jit.jit.key import key_of
from chord_jit.jit.toolchain import discover
from tests.toy.family import ASSETS, spec

HEADERS = {
    "cuda.h": "#define CUDA_VERSION {major}000\n",
    "crt/host_defines.h": "",
    "cuda/std/__cccl/version.h": "#define CCCL_VERSION 2008002\n",
}
CUTLASS = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 9\n#define CUTLASS_PATCH 1\n"
#: Layout: header to the folder that holds it, below the site folder or the toolkit.
WHEELS_13 = {
    "cuda.h": "nvidia/cu13/include", "crt/host_defines.h": "nvidia/cu13/include", "cuda/std/__cccl/version.h": "nvidia/cu13/include/cccl",
}
WHEELS_12 = {
    "cuda.h": "nvidia/cuda_runtime/include", "crt/host_defines.h": "nvidia/cuda_nvcc/include",
    "cuda/std/__cccl/version.h": "nvidia/cuda_cccl/include",
}
TOOLKIT_13 = {"cuda.h": "include", "crt/host_defines.h": "include", "cuda/std/__cccl/version.h": "include/cccl"}
TOOLKIT_12 = {name: "targets/sbsa-linux/include" for name in TOOLKIT_13}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing on it: an empty site folder, no toolkit, an empty search path."""
    monkeypatch.setattr(places, "_package", lambda name: (tmp_path / "site" / name,) if (tmp_path / "site" / name).is_dir() else ())
    monkeypatch.setattr(places, "_DEFAULT_TOOLKIT", str(tmp_path / "default"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    toolchain._discover.cache_clear()
    yield tmp_path
    toolchain._discover.cache_clear()


def put(folder: Path, layout: dict[str, str], major: int = 13) -> None:
    for name, place in layout.items():
        path = folder / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADERS[name].format(major=major))


def put_file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def put_nvcc(path: Path, version: str = "12.9.86") -> Path:
    put_file(path, f"#!/bin/sh\necho Cuda compilation tools, release 0, V{version}\n").chmod(0o755)
    return path


def test_v26_wheels_of_cuda_13(machine):
    put(machine / "site", WHEELS_13)
    put_file(machine / "site/nvidia/cu13/lib/libnvrtc.so.13")
    put_file(machine / "site/cutlass_library/source/include/cutlass/version.h", CUTLASS)
    found = discover()
    found.require()
    assert found.kind == "nvrtc" and found.cutlass.version == "4.9.1" and found.cccl.version == "2008002"
    assert [str(path.relative_to(machine / "site")) for path in found.include_dirs] == [
        "nvidia/cu13/include", "nvidia/cu13/include/cccl", "cutlass_library/source/include",
    ]


#: name, where it is put, layout
TOOLKITS = (
    ("13", "kit", TOOLKIT_13), ("sbsa", "kit", TOOLKIT_12), ("default", "default", TOOLKIT_13), ("blank in path", "my kit", TOOLKIT_13),
)


@pytest.mark.parametrize("name, folder, layout", TOOLKITS, ids=[case[0] for case in TOOLKITS])
def test_v26_v27_toolkits(machine, name, folder, layout):
    put(machine / folder, layout)
    put_file(machine / folder / "lib64/libnvrtc.so.13.0.96")
    (machine / folder / "lib64/libnvrtc.so.13").symlink_to("libnvrtc.so.13.0.96")
    with knobs.scope(CUDA_HOME=None if folder == "default" else str(machine / folder)):
        found = discover()
    assert [part.name for part in found.missing] == ["CUTLASS headers"]
    assert found.compiler.version == "13.0.96" and found.cuda_headers.version == "13000"
    assert all(path.is_relative_to(machine / folder) for path in found.include_dirs)


#: CUDA_HOME as people set it; {kit} is the toolkit
CUDA_HOMES = (":{kit}", "{kit}:", "{kit}/", "  {kit} ", "/nonexistent:{kit}", "{kit}/include/cuda.h:{kit}")


@pytest.mark.parametrize("text", CUDA_HOMES)
def test_v23_cuda_home_in_every_spelling(machine, text):
    put(machine / "kit", TOOLKIT_13)
    with knobs.scope(CUDA_HOME=text.format(kit=machine / "kit")):
        assert discover().cuda_headers.path == machine / "kit/include"


@pytest.mark.parametrize("text", ["", "   ", ":", "/nonexistent/", "/dev/null"])
def test_v23_cuda_home_that_names_nothing(machine, text):
    with knobs.scope(CUDA_HOME=text):
        assert discover().cuda_headers.path is None


def test_v26_headers_of_another_major_version_are_passed_over(machine):
    put(machine / "site", WHEELS_12, major=12)
    put_file(machine / "site/nvidia/cu13/lib/libnvrtc.so.13")
    assert discover().cuda_headers.path is None
    put(machine / "kit", TOOLKIT_13)
    with knobs.scope(CUDA_HOME=str(machine / "kit")):
        assert discover().cuda_headers.path == machine / "kit/include"


def test_v26_nvcc_12_takes_the_wheels_of_cuda_12(machine):
    put(machine / "site", WHEELS_12, major=12)
    with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=str(put_nvcc(machine / "bin/nvcc"))):
        found = discover()
    assert found.compiler.version == "12.9.86" and found.cuda_headers.path == machine / "site/nvidia/cuda_runtime/include"
    assert [part.name for part in found.missing] == ["CUTLASS headers"]


def test_nvcc_prefers_the_headers_of_its_own_toolkit(machine):
    put(machine / "site", WHEELS_13)
    put(machine / "kit", TOOLKIT_13)
    put_nvcc(machine / "kit/bin/nvcc", "13.0.88")
    with knobs.scope(CHORD_COMPILER="nvcc", CUDA_HOME=str(machine / "kit")):
        assert discover().cuda_headers.path == machine / "kit/include"


def test_nvcc_named_wrongly_is_missing_although_another_is_there(machine):
    put_nvcc(machine / "bin/nvcc")
    with knobs.scope(CHORD_COMPILER="nvcc"):
        assert discover().compiler.path == machine / "bin/nvcc"
    with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=str(machine / "typo/nvcc")):
        assert discover().compiler.path is None


def test_nvcc_that_does_not_answer_shares_no_key_with_one_that_does(machine):
    broken = put_file(machine / "bin/nvcc", "#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=str(broken)):
        assert discover().compiler.version.startswith("unusable")


def test_v14_the_same_compiler_by_any_path_has_one_version_and_one_key(machine, monkeypatch):
    put_nvcc(machine / "kit/bin/nvcc")
    (machine / "link").symlink_to(machine / "kit")
    found = []
    for name in ("kit", "link", "PATH"):
        monkeypatch.setenv("PATH", str(machine / "kit/bin" if name == "PATH" else machine / "bin"))
        with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=None if name == "PATH" else str(machine / name / "bin/nvcc")):
            found.append((discover().compiler.version, digest()))
    assert found == [("12.9.86", found[0][1])] * 3


def digest(arch: str = "sm_90a") -> str:
    with assets.scope(ASSETS):
        return key_of(spec(arch=arch)).digest


VERSIONS = ("12.3.107", "12.8.93", "12.9.86", "12.10.1", "13.0.88", "13.5.12")


@pytest.mark.parametrize("arch", sorted(device.TARGETS))
def test_v24_v28_versions_are_text_and_choose_no_option(machine, arch):
    """12.10 is neither 12.1 nor older than 12.9; a compiler too old for the target refuses it itself, with its own words."""
    digests = []
    for version in VERSIONS:
        nvcc = put_nvcc(machine / version / "nvcc", version)
        put(machine / version, TOOLKIT_13)
        major, minor, _ = version.split(".")
        put_file(machine / version / "include/cuda.h", f"#define CUDA_VERSION {major}{int(minor):02}0\n")
        with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=str(nvcc), CUDA_HOME=str(machine / version)):
            assert discover().compiler.version == version and discover().cuda_headers.path == machine / version / "include"
            digests.append(digest(arch))
    assert len(set(digests)) == len(VERSIONS)
    for kind in ("nvrtc", "nvcc"):
        words = compiler.flags(kind, arch)
        assert [word for word in words if "arch" in word or "code" in word or "compute" in word] == [f"--gpu-architecture={arch}"]


def test_v22_v26_the_error_names_every_part_place_and_remedy(machine):
    with knobs.scope(CUDA_HOME=str(machine / "kit")), pytest.raises(ToolchainError) as caught:
        discover().require()
    text = str(caught.value)
    for part in ("NVRTC", "CUDA headers", "CUDA crt headers", "CUDA C++ core headers", "CUTLASS headers"):
        assert part in text
    assert str(machine / "kit/include") in text and str(machine / "default/lib64") in text
    assert f"nvidia-cuda-nvrtc=={schema.PINNED_COMPILER}" in text and f"nvidia-cutlass=={schema.PINNED_CUTLASS}" in text


def test_v22_the_error_of_nvcc_names_the_search_path(machine):
    with knobs.scope(CHORD_COMPILER="nvcc", CUDA_HOME=str(machine / "kit")), pytest.raises(ToolchainError) as caught:
        discover().require()
    assert str(machine / "kit/bin/nvcc") in str(caught.value) and "CHORD_NVCC" in str(caught.value)


def test_cutlass_by_its_own_variable(machine):
    put_file(machine / "site/cutlass_library/source/include/cutlass/version.h", CUTLASS)
    put_file(machine / "mine/cutlass/version.h", CUTLASS.replace("9", "8"))
    with knobs.scope(CHORD_CUTLASS_DIR=str(machine / "mine")):
        assert discover().cutlass.path == machine / "mine" and discover().cutlass.version == "4.8.1"
    with knobs.scope(CHORD_CUTLASS_DIR=str(machine / "typo")):
        assert discover().cutlass.path is None


def test_relative_names_hold_where_the_process_goes_later(machine, monkeypatch):
    """nvcc runs in a folder of its own, and a server may leave the one that it was started in."""
    put_file(machine / "work/mine/cutlass/version.h", CUTLASS)
    put(machine / "work/kit", TOOLKIT_13)
    put_nvcc(machine / "work/kit/bin/nvcc", "13.0.88")
    monkeypatch.chdir(machine / "work")
    for nvcc in ("kit/bin/nvcc", None):
        with knobs.scope(CHORD_COMPILER="nvcc", CHORD_NVCC=nvcc, CHORD_CUTLASS_DIR="mine", CUDA_HOME="kit"):
            found = discover()
            assert found.missing == () and all(part.path.is_relative_to(machine / "work") for part in found.parts)
            monkeypatch.chdir("/")
            assert discover() is found and toolchain.unchanged()
            monkeypatch.chdir(machine / "work")


def test_a_relative_search_path_gives_an_absolute_nvcc(machine, monkeypatch):
    put_nvcc(machine / "work/bin/nvcc")
    monkeypatch.chdir(machine / "work")
    monkeypatch.setenv("PATH", "bin")
    with knobs.scope(CHORD_COMPILER="nvcc"):
        assert discover().compiler.path == machine / "work/bin/nvcc"


def test_a_toolchain_that_moves_is_noticed(machine):
    """In what it says of itself, and in where it lies; ``discover`` keeps to what the keys of this process say."""
    header = put_file(machine / "mine/cutlass/version.h", CUTLASS)
    kit = machine / "kit"
    put(kit, TOOLKIT_13)
    nvcc = put_nvcc(kit / "bin/nvcc", "13.0.88")
    with knobs.scope(CHORD_COMPILER="nvcc", CUDA_HOME=str(kit), CHORD_CUTLASS_DIR=str(machine / "mine")):
        found = discover()
        assert toolchain.unchanged()
        header.write_text(CUTLASS.replace("9", "8"))
        assert not toolchain.unchanged() and discover() is found
        header.write_text(CUTLASS)
        assert toolchain.unchanged()
        put_nvcc(nvcc, "13.1.80")
        assert not toolchain.unchanged()
        put_nvcc(nvcc, "13.0.88")
        header.unlink()
        assert not toolchain.unchanged()


def test_a_toolchain_that_goes_away_under_the_look_is_no_error(machine, monkeypatch):
    """The kernel is compiled by then."""
    header = put_file(machine / "mine/cutlass/version.h", CUTLASS)
    with knobs.scope(CHORD_CUTLASS_DIR=str(machine / "mine")):
        assert discover().cutlass.version == "4.9.1"
        monkeypatch.setattr(places, "first", lambda folders, name: header if name == "cutlass/version.h" else None)
        header.unlink()
        assert not toolchain.unchanged()


def test_v20_probed_once(machine, monkeypatch):
    put_nvcc(machine / "bin/nvcc")
    with knobs.scope(CHORD_COMPILER="nvcc"):
        first = discover()
        monkeypatch.setattr(toolchain, "places", None)
        assert discover() is first


def test_this_environment_is_the_pinned_one():
    found = discover()
    assert found.compiler.version == schema.PINNED_COMPILER and found.cutlass.version == schema.PINNED_CUTLASS
    assert found.cuda_headers.version == schema.PINNED_CUDA_HEADERS and found.cccl.version == schema.PINNED_CCCL
    assert found.missing == ()


def test_the_pins_are_those_of_the_package():
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    for part in discover().parts:
        assert part.remedy.removeprefix("pip install ") in text.replace(",\n", "\n")
