"""Importing the package, and asking which names it has, touches nothing: no file but code, no environment, no process, no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Run in a fresh interpreter: {body} is executed with the hooks on; what it touched is printed, one thing a line.
WATCHED = """
import os, sys
touched = []
QUIET = ("os.listdir", "os.scandir")
NOISY = ("os.", "shutil.", "tempfile.", "subprocess.", "socket.", "pty.", "ctypes.dlopen", "mmap.")

def hook(event, arguments):
    if event == "open":
        name = str(arguments[0])
        if not name.endswith((".py", ".pyc", ".so", ".pth")):
            touched.append("open " + name)
    elif event.startswith(NOISY) and event not in QUIET:
        touched.append(event)

class Environment(type(os.environ)):
    def __getitem__(self, key):
        if not key.startswith("PYTHON"):
            touched.append("environment " + key)
        return super().__getitem__(key)

os.environ.__class__ = Environment
sys.addaudithook(hook)
{body}
for name in ("torch", "cuda", "numpy", "jinja2", "filelock", "rich"):
    if name in sys.modules:
        touched.append("import " + name)
print("\\n".join(touched))
"""

#: What the hooks must see, or the tests below could not fail.
SEEN = (
    ("open('/proc/self/stat').read()", "open /proc/self/stat"),
    ("os.mkdir('/proc/no')", "os.mkdir"),
    ("os.environ.get('HOME')", "environment HOME"),
    ("os.getenv('CHORD_CACHE_DIR')", "environment CHORD_CACHE_DIR"),
    ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
    ("import filelock", "import filelock"),
)


def touched_by(body: str) -> list[str]:
    script = WATCHED.replace("{body}", body)
    result = subprocess.run([sys.executable, "-B", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def test_v13_import_touches_nothing():
    assert touched_by("import chord_jit; dir(chord_jit); chord_jit.__version__") in ([], [""])


@pytest.mark.parametrize("body, expected", SEEN, ids=[expected for _, expected in SEEN])
def test_the_hooks_see(body, expected):
    assert expected in touched_by(f"try:\n    {body}\nexcept OSError:\n    pass")


def test_every_public_name_is_there():
    import chord_jit

    assert len(set(chord_jit.__all__)) == len(chord_jit.__all__) > 0
    assert set(chord_jit.__all__) <= set(dir(chord_jit))
    for name in chord_jit.__all__:
        assert getattr(chord_jit, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = chord_jit.no_such_name
