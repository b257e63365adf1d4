"""How the device hands out its tiles, run on the host: the headers themselves, compiled for a warp of fibers (``host/warp.h``)."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from chord_jit import assets
from chord_jit.jit import toolchain

HOST = Path(__file__).parent / "host"
WORKERS = (1, 2, 78, 132, 160, 264)


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """``walks(requests)``: the answer to each line, as words."""
    if not shutil.which("g++"):
        pytest.skip("no host compiler here")
    program = tmp_path_factory.mktemp("walks") / "walks"
    includes = [f"-I{folder}" for folder in (*assets.folders("include"), *toolchain.discover().include_dirs)]
    command = ["g++", "-std=c++17", "-O1", "-w", *includes, str(HOST / "walks.cpp"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def ask(requests: list[str]) -> list[list[str]]:
        done = subprocess.run([program], input="\n".join(requests) + "\n", capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done
        return [line.split() for line in done.stdout.splitlines()]

    return ask


# -- cut last waves -----------------------------------------------------------------------------------------------------
def shapes() -> list[tuple[int, int, int]]:
    """Tiles, workers, stages of a tile."""
    few = [(tiles, workers, stages) for workers in (1, 2, 5) for tiles in range(3 * workers + 2) for stages in (1, 2, 3, 28)]
    many = [(random.randrange(2000), random.choice(WORKERS), random.choice((1, 2, 4, 16, 56, 112))) for _ in range(300)]
    return few + many + [(48 * 16 * 2, 132, 56), (2**20, 132, 112), (131, 132, 56), (132, 132, 56), (133, 132, 56)]


def test_the_pieces_of_the_last_waves_hold_every_stage_once(walks):
    asked = shapes()
    for (tiles, workers, stages), answer in zip(asked, walks([f"pieces {t} {w} {s} 1" for t, w, s in asked]), strict=True):
        whole, pieces, tickets, *begins = map(int, answer)
        assert tickets == whole + pieces and whole <= tiles
        if pieces == 0:
            assert whole == tiles and (tiles < workers or tiles % workers == 0)
            continue
        left = (tiles - whole) * stages
        assert pieces == workers and whole % workers == 0 and workers < tiles - whole < 2 * workers
        assert begins[0] == 0 and begins[-1] == left
        lengths = [end - begin for begin, end in zip(begins, begins[1:], strict=False)]
        assert min(lengths) >= stages, "a tile that two cuts fell into would be joined wrongly"
        assert max(lengths) - min(lengths) <= 1
        cut = [begin // stages for begin in begins[1:-1] if begin % stages]
        assert len(set(cut)) == len(cut)


def test_without_cuts_every_tile_is_a_ticket(walks):
    answers = walks([f"pieces {tiles} 132 56 0" for tiles in (0, 1, 131, 133, 500)])
    assert [list(map(int, answer)) for answer in answers] == [[tiles, 0, tiles] for tiles in (0, 1, 131, 133, 500)]


def test_the_halves_of_a_last_wave_are_both_halves_of_each_of_its_tiles(walks):
    asked = [(tiles, workers, halves) for tiles, workers, _ in shapes() if tiles < 3000 for halves in (0, 1)]
    for (tiles, workers, halves), answer in zip(asked, walks([f"halves {t} {w} {h}" for t, w, h in asked]), strict=True):
        tickets, pieces = int(answer[0]), [tuple(map(int, piece.split(":"))) for piece in answer[1:]]
        assert tickets == len(pieces)
        left = tiles % workers if halves and 2 * (tiles % workers) <= workers else 0
        wanted = [(tile, -1) for tile in range(tiles - left)] + [(tile, half) for tile in range(tiles - left, tiles) for half in (0, 1)]
        assert pieces == wanted


# -- token tiles --------------------------------------------------------------------------------------------------------
def counts_of(experts: int) -> list[int]:
    """Rows of each expert: none, few, exactly a tile, far more."""
    return [random.choice((0, 0, 1, 7, 8, 16, 17, 127, 128, 129, 256, 300, random.randrange(600))) for _ in range(experts)]


def expected(starts: list[tuple[int, int, int]], bm: int) -> list[tuple[int, int, int]]:
    """Tiles (expert, row, count) of segments (expert, first row, rows)."""
    return [(expert, first + at, min(bm, rows - at)) for expert, first, rows in starts for at in range(0, rows, bm)]


def tiles_in(answer: list[str]) -> list[tuple[int, int, int]]:
    return [tuple(map(int, tile.split(":"))) for tile in answer]


def request(kind: str, bm: int, experts: int, rows: int, max_m: int, count: int, values: list[int]) -> str:
    return " ".join(map(str, (kind, bm, experts, rows, max_m, count, *values)))


@pytest.mark.parametrize("bm", [8, 16, 128, 256])
@pytest.mark.parametrize("experts", [1, 31, 32, 33, 64, 384, 1025])
def test_offsets_give_every_row_to_one_tile_of_its_expert(walks, experts, bm):
    counts = counts_of(experts)
    offsets = [sum(counts[:expert]) for expert in range(experts + 1)]
    (answer,) = walks([request("offsets", bm, experts, offsets[-1] + 77, 0, experts, offsets)])
    assert tiles_in(answer) == expected([(expert, offsets[expert], counts[expert]) for expert in range(experts)], bm)


@pytest.mark.parametrize("bm", [8, 16, 128, 256])
@pytest.mark.parametrize("experts", [1, 32, 33, 384, 1025])
def test_counts_give_every_row_to_one_tile_of_its_expert(walks, experts, bm):
    counts, max_m = counts_of(experts), 640
    (answer,) = walks([request("masked", bm, experts, experts * max_m, max_m, experts, counts)])
    assert tiles_in(answer) == expected([(expert, expert * max_m, counts[expert]) for expert in range(experts)], bm)


def padded(experts: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Owners of rows padded to 128 for each expert, experts shuffled, with blocks of padding alone; and the segments they make."""
    owners, starts = [-1] * (128 * random.randrange(3)), []
    for expert in random.sample(range(experts), experts):
        owners += [-1] * (128 * random.choice((0, 0, 0, 1, 2, 3)))
        if rows := random.choice((0, 1, 100, 128, 200, 256, 257, 900)):
            starts.append((expert, len(owners), rows))
            owners += [expert] * rows + [-1] * (-rows % 128)
    return owners + [-1] * (128 * random.randrange(3)), starts


@pytest.mark.parametrize("bm", [8, 16, 128, 256])
@pytest.mark.parametrize("experts", [1, 5, 48, 384])
def test_blocks_give_every_row_to_one_tile_of_its_expert(walks, experts, bm):
    owners, starts = padded(experts)
    (answer,) = walks([request("blocks", bm, experts, len(owners), 0, len(owners) // 128, owners)])
    assert [tile for tile in tiles_in(answer) if tile[2]] == expected(starts, bm)


# -- broken metadata ----------------------------------------------------------------------------------------------------
def test_broken_values_never_name_a_row_that_is_not_there(walks):
    """Wrong rows, but never an access outside the tensors, whatever the metadata hold."""
    wild = lambda: random.choice((-(2**31), -5, 0, 3, 40, 10**6, 2**31 - 1))  # noqa: E731
    requests, limits = [], []
    for bm in (8, 16, 128, 256):
        for _ in range(20):
            experts, rows = random.choice((1, 5, 40)), 128 * random.randrange(1, 20)
            requests.append(request("offsets", bm, experts, rows, 0, experts, [wild() for _ in range(experts + 1)]))
            limits.append((experts, rows))
            requests.append(request("masked", bm, experts, experts * 64, 64, experts, [wild() for _ in range(experts)]))
            limits.append((experts, experts * 64))
            owners = [random.choice((wild(), random.randrange(experts))) for _ in range(rows)]
            requests.append(request("blocks", bm, experts, rows, 0, rows // 128, owners))
            limits.append((experts, rows))
    for (experts, rows), line, answer in zip(limits, requests, walks(requests), strict=True):
        for expert, row, count in tiles_in(answer):
            assert 0 <= expert < experts and 0 <= row and row + count <= rows, line


def test_the_warp_of_fibers_is_a_warp(walks):
    """Two lanes' worth of segments and two chunks of 32: a walk that mixed lanes or chunks up would not come out even."""
    offsets = list(range(66))
    (answer,) = walks([request("offsets", 8, 65, 65, 0, 65, offsets)])
    assert tiles_in(answer) == [(expert, expert, 1) for expert in range(65)]
