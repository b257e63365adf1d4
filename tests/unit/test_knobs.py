"""Variables that the published package reads: accepted with its values, and of no effect."""

from pathlib import Path

import pytest

import chord_jit
from chord_jit import device, knobs
from chord_jit.errors import OverrideError
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY as INDEXED

ACCEPTED = ("CHORD_SM90_DECODE", "CHORD_USE_GROUPED")
ROOT = Path(chord_jit.__file__).parent
H200 = device.target("sm_90a")
#: Few rows and many, of both families.
PROBLEMS = [(INDEXED, INDEXED.problem(H200, 48, 4096, 7168, rows, interleaved=True, swiglu=True)) for rows in (1.0, 300.0)]
PROBLEMS += [(GROUPED, GROUPED.problem(H200, 48, 7168, 2048, rows, layout="masked")) for rows in (4, 300)]


@pytest.fixture
def environment(monkeypatch):
    """Sets variables and has them read; afterwards the environment is read as it was."""

    def put(**values: str):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        knobs.refresh()

    yield put
    monkeypatch.undo()
    knobs.refresh()


@pytest.mark.parametrize("decode", ["0", "1", ""])
@pytest.mark.parametrize("grouped", ["0", "1", " "])
def test_published_variables_change_no_choice(environment, decode, grouped):
    before = [family.schedule(problem) for family, problem in PROBLEMS]
    environment(CHORD_SM90_DECODE=decode, CHORD_USE_GROUPED=grouped)
    assert [family.schedule(problem) for family, problem in PROBLEMS] == before
    assert knobs.read("CHORD_SM90_DECODE") == (int(decode) if decode else None)


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("text", ["2", "true", "decode"])
def test_values_that_were_never_published_are_refused(environment, name, text):
    with pytest.raises(OverrideError, match="must be 0 or 1") as caught:
        environment(**{name: text})
    assert name in str(caught.value)


def test_nothing_in_the_package_reads_them():
    """They are in the table of variables, and no other file names them."""
    package = [path for path in ROOT.rglob("*.py") if path.name != "knobs.py"]
    assert len(package) > 50 and not [path for path in package if any(name in path.read_text() for name in ACCEPTED)]
    assert {knob.group for knob in knobs.KNOBS if knob.name in ACCEPTED} == {"accepted, no longer needed"}
