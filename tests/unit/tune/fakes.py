"""Contests without a GPU, and journals of runs that never were."""

from __future__ import annotations

from chord_jit import device
from chord_jit.bench.cases import Case, Draw, Layer
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune.contest import Contest, contests
from chord_jit.tune.halving import LAST

H200 = device.target("sm_90a")
LAYER = Layer("tiny_gate_up", 16, 512, 1024, True, False, "test")
A, B, C = (Schedule("w4a16_mma", 8, 128, 512, 3), Schedule("w4a16_mma", 16, 128, 512, 3), Schedule("w4a16_mma", 8, 256, 256, 3))
W = Schedule("w4a16_wgmma", 64, 256, 128, 4)
COMMIT = "0123abcd"


def case(tokens: int = 4, layer: Layer = LAYER) -> Case:
    """Tokens with 8 picks each over the layer's experts; the consequences of the draw do not matter here."""
    return Case(layer, Draw(tokens, layer.experts, seed=0, active=16, busiest=4))


def contest(tokens: int = 4, schedules: tuple[Schedule, ...] = (A, B, C), *, swiglu: bool = False) -> Contest:
    (made,) = contests([case(tokens)], H200, forms=(swiglu,), given=schedules, candidates=False)
    return made


def timed(one: Contest, us: dict[Schedule, float], *, stage: int = LAST, samples: int = 60, turn: int = 0) -> list[dict]:
    """The lines of a stage."""
    facts = {"contest": one.name, "at": "timed", "stage": stage, "samples": samples, "turn": turn, "error": 1e-3}
    return [{**facts, "schedule": str(schedule), "us": time, "p10": time, "p90": time} for schedule, time in us.items()]


def header(**changes) -> dict:
    from chord_jit.tune import journal

    made = journal.header(H200, "580.1", journal.kernel_hashes(["w4a16_mma"]), "chord tune --cases decode", COMMIT)
    return {**made, **changes}


def row(schedule: Schedule, low: int, high: int, at: int, us: float = 20.0, **changes) -> dict:
    """A table row of ``contest()``'s problem."""
    from chord_jit.tune.ranges import fields_of

    made = {
        "arch": "sm_90a", "sms": 132, "layout": "indexed", "n": 512, "k": 1024, "experts": 16, "swiglu": False, "rows_lo": low,
        "rows_hi": high, "schedule": fields_of(schedule), "us": us, "at_rows": at, "commit": "aaaaaaa", "gpu": "NVIDIA H200",
    }  # fmt: skip
    return {**made, **changes}
