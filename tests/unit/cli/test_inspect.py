"""``chord inspect``: the compiler's numbers, the occupancy, the instructions, the main loop; without nvdisasm all but the code."""

from __future__ import annotations

import json

import pytest

from chord_jit import cli, knobs
from chord_jit.cli.inspect import schedule_of
from chord_jit.device import target
from chord_jit.families import base
from chord_jit.families.indexed import FAMILY
from chord_jit.jit import engine, places, sass
from chord_jit.schedules.deployment import Deployment
from tests.toy.fake import FakeCompiler

LISTING = """\
        .global         chord_x
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
.L_x_2:
        /*0020*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0030*/              @!P0 HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0040*/               @P2 BRA `(.L_x_2) ;
        /*0050*/               @P3 BRA `(.L_x_1) ;
.L_x_3:
        /*0060*/                   SYNCS R1 ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/                   BRA `(.L_x_1) ;
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The digest of one kernel that the real compiler made."""
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path_factory.mktemp("inspect"))):
        problem = FAMILY.problem(target("sm_90a"), 4, 128, 256, 2.0)
        yield engine.build(FAMILY.spec(problem, FAMILY.schedule(problem))).digest


def test_a_real_kernel(real, capsys):
    assert cli.main(["inspect", real[:16], "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["facts"]["spill_bytes"] == 0 and body["facts"]["registers"] > 32
    assert body["occupancy"]["ctas"] >= 1 and body["occupancy"]["shared_bytes"] == body["config"]["kSharedBytes"]
    assert body["instructions"]["HMMA"] > 0 and body["loop"]["tensor"] > 0 and any("HMMA" in line for line in body["sass"])
    assert cli.main(["inspect", real[:16], "--lines", "3"]) == 0
    text = capsys.readouterr().out
    assert "occupancy" in text and "lines more" in text and len(text.split("main loop, ")[1].splitlines()) == 5


def test_v22_without_nvdisasm_the_rest_is_shown_and_the_remedy(real, capsys, monkeypatch):
    monkeypatch.setattr(places, "nvdisasm_candidates", lambda roots: ())
    assert cli.main(["inspect", real, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["facts"]["registers"] > 32 and body["sass"] == [] and "nvidia-cuda-nvdisasm" in body["no_sass"]
    assert cli.main(["inspect", real]) == 0 and "nvidia-cuda-nvdisasm" in capsys.readouterr().out


def test_what_is_no_cubin_for_nvdisasm(tmp_path, capsys):
    """A fake compiler's image passes for a cubin in the cache; nvdisasm says what it thinks of it."""
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path)):
        problem = FAMILY.problem(target("sm_90a"), 4, 128, 512, 2.0)
        entry = engine.build(FAMILY.spec(problem, FAMILY.schedule(problem)), FakeCompiler(tmp_path / "ledger"))
        assert cli.main(["inspect", entry.digest, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["facts"]["spill_bytes"] == 32 and body["instructions"] == {}


@pytest.mark.parametrize("name", ["zzz", "0" * 64, "", "w4a16_mma"])
def test_no_such_kernel(name, capsys):
    assert cli.main(["inspect", name]) == 2
    assert "chord cache list" in capsys.readouterr().err


def test_every_kernel_of_a_schedule(tmp_path, capsys):
    """Two projections share a schedule, a third kernel has another; a damaged one is left out."""
    problems = [FAMILY.problem(target("sm_90a"), 4, n, 512, 2.0) for n in (128, 256, 384)]
    wide, narrow = (next(s for s in FAMILY.candidates(problems[1]) if s.bn == bn and s.ctas == 2) for bn in (128, 256))
    with knobs.scope(CHORD_CACHE_DIR=str(tmp_path)):
        pairs = ((problems[0], wide), (problems[1], wide), (problems[1], narrow), (problems[2], wide))
        digests = [engine.build(FAMILY.spec(*pair), FakeCompiler(tmp_path / "ledger")).digest for pair in pairs]
        next(tmp_path.glob(f"*/??/{digests[3]}/entry.json")).write_text("{}")
        for text in (str(wide), f"  {wide}  cn1 "):
            assert cli.main(["inspect", text, "--json"]) == 0
            body = json.loads(capsys.readouterr().out)
            assert sorted(kernel["digest"] for kernel in body["kernels"]) == sorted(digests[:2]) and body["schedule"] == text
        assert cli.main(["inspect", str(narrow)]) == 0
        text = capsys.readouterr().out
        assert digests[2][:16] in text and digests[0][:16] not in text
        assert cli.main(["inspect", "w4a16_mma 16x128x256 s16"]) == 2
        assert "w4a16_mma 16x128x256 s16" in (said := capsys.readouterr().err) and str(tmp_path) in said and "chord warmup" in said
        assert cli.main(["inspect", "w4a16_mma 16x128 s3"]) == 2
        assert "'w4a16_mma 16x128x256 s3 ctas2'" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [{"ep": 8}, {"tp": 8}], ids=str)
@pytest.mark.parametrize("name", sorted(set(base.FAMILIES) - {"rows"}))
def test_a_schedule_is_read_off_the_fields_of_its_kernel(name, ranks):
    family = base.family(name)
    problems = list(family.deployment(Deployment(7168, 2048, 384, 8, **ranks), target("sm_90a")))
    for problem in [*problems[::97], *{(one.n, one.k): one for one in problems}.values()]:
        for schedule in family.candidates(problem):
            assert schedule_of(schedule.kernel, dict(family.spec(problem, schedule).config)) == schedule
    assert schedule_of("read_floor", {"kThreads": 256}) is None


def test_the_main_loop_is_the_innermost_one_with_tensor_work():
    found = sass.listing(LISTING)
    assert (found.loop.tensor, found.excerpt[0], found.excerpt[-1].split()[-2]) == (2, ".L_x_2:", "`(.L_x_2)")
    assert found.counts == {"LDC": 1, "HMMA": 2, "HGMMA": 1, "BRA": 4, "SYNCS": 1}
    assert sass.listing("nothing").loop is None
