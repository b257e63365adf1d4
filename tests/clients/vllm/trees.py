"""vLLM's and Humming's Python files, fetched once by pip into the user's cache, and never installed.

``TEST_VLLM_TREE`` names a folder that holds ``vllm/`` and ``humming/`` already, for machines without a network; ``none`` skips the tests.
``TEST_VLLM_VERSION`` names another release of those below. Compiled code is left in the wheels. For a machine without a network:
``python -m tests.clients.vllm.trees vllm.zip`` here, ``python -m zipfile -e vllm.zip FOLDER`` there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

#: Releases of vLLM with the Humming that each pins.
HUMMING = {"0.33.0": "0.1.19", "0.32.0": "0.1.17", "0.31.0": "0.1.16", "0.30.0": "0.1.12"}
VERSION = os.environ.get("TEST_VLLM_VERSION", "0.33.0")
GIVEN = os.environ.get("TEST_VLLM_TREE", "")
SKIPPED = GIVEN.lower() == "none"
_SECONDS = 480


def there() -> bool:
    """Whether ``tree`` would fetch nothing."""
    return not SKIPPED and (bool(GIVEN) or _kept().is_dir())


def tree() -> Path:
    """The folder of the files, complete. A fetch that fails raises what pip said."""
    if GIVEN:
        if not (Path(GIVEN) / "vllm" / "version.py").is_file() or not (Path(GIVEN) / "humming" / "schema").is_dir():
            raise FileNotFoundError(f"TEST_VLLM_TREE={GIVEN} holds no vllm/ and humming/: unpack a zip of tests.clients.vllm.trees there")
        return Path(GIVEN)
    folder = _kept()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            fetch(folder)
    return folder


def _kept() -> Path:
    return user_cache_path("chord_jit") / "test-clients" / f"vllm-{VERSION}"


def fetch(folder: Path) -> None:
    """Downloads the two wheels and keeps their Python files and metadata as ``folder``, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheels, files = Path(scratch) / "wheels", Path(scratch) / "files"
        wanted = [f"vllm=={VERSION}", f"humming-kernels=={HUMMING[VERSION]}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        result = subprocess.run([*command, "--dest", str(wheels), *wanted], capture_output=True, text=True, timeout=_SECONDS)
        if result.returncode:
            raise RuntimeError(f"pip could not fetch {' and '.join(wanted)}; TEST_VLLM_TREE=none skips these tests\n{result.stderr}")
        for wheel in wheels.iterdir():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(files, [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name])
        shutil.move(files, folder)


def main(target: str) -> None:
    """Writes the files to a zip, compressed as far as it goes."""
    files = tree()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in files.rglob("*") if path.suffix == ".py" or path.name == "METADATA"):
            archive.write(path, path.relative_to(files))
    print(f"{target}: {Path(target).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
