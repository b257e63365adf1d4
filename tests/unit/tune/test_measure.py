"""The measuring part on the CPU: stand-ins compute on the CPU and know their times."""

from __future__ import annotations

import pytest
import torch

from chord_jit.bench import check
from chord_jit.bench.layers import Layer
from chord_jit.bench.ours import Bound
from chord_jit.bench.timing import Spread
from chord_jit.errors import CompileError
from chord_jit.schedules.schedule import Schedule
from chord_jit.tune import measure
from chord_jit.tune.contest import contests
from chord_jit.tune.halving import LAST
from chord_jit.tune.held import by_contest
from chord_jit.tune.journal import Journal
from chord_jit.tune.measure import Bench
from tests.unit.tune.fakes import H200, case, header

TINY = Layer("tiny_gate_up", 16, 128, 256, True, False, "test")
FIELD = [Schedule("w4a16_mma", bm, 128, 256, stages) for bm in (8, 16) for stages in range(2, 10)]


class StandInCall:
    """Fills ``out`` with the exact result times ``factor``."""

    def __init__(self, us: float, out: torch.Tensor, wanted: torch.Tensor, factor: float):
        self.us, self._out, self._result = us, out, wanted * factor

    def __call__(self) -> None:
        self._out.copy_(self._result)


class Gpu:
    """``factors``: what a schedule's result is multiplied with, or the exception that its call raises."""

    def __init__(self, path, generator):
        self.journal = Journal.create(path, header())
        self.bench = Bench(H200, generator, lambda: None, rounds=60)
        self.factors, self.bound, self.interleaved, self.weights = {}, [], [], 0
        self._inputs, self._wanted = None, None

    def scheduled(self, case, weight, inputs, facts, schedule, *, swiglu):
        self.bound.append(schedule)
        what = self.factors.get(schedule, 1.0)
        if isinstance(what, Exception):
            raise what
        out = inputs.empty_output(weight.n // 2 if swiglu else weight.n)
        assert out.isnan().all()
        if self._inputs is not inputs:
            self._inputs, self._wanted = inputs, check.exact(weight, inputs, swiglu=swiglu)
        return Bound(StandInCall(100.0 + FIELD.index(schedule), out, self._wanted, what), out, schedule)

    def interleave(self, calls, flush, rounds, settle=0.0):
        self.interleaved.append((tuple(calls), rounds, settle))
        return {name: Spread.of([call.us] * rounds) for name, call in calls.items()}

    def measure(self, wanted):
        steps = []
        measure.measure(self.bench, wanted, self.journal, lambda done, total, one: steps.append((done, total, one.name)))
        return steps

    def held(self, one):
        return by_contest(Journal.read(self.journal.path).lines)[one.name]


@pytest.fixture
def gpu(tmp_path, monkeypatch, seed):
    gpu = Gpu(tmp_path / "journal.jsonl", torch.Generator().manual_seed(seed))
    draw = measure.workload.weights

    def weights(layer, generator):
        gpu.weights += 1
        return draw(layer, generator)

    monkeypatch.setattr(measure.ours, "scheduled", gpu.scheduled)
    monkeypatch.setattr(measure, "interleave", gpu.interleave)
    monkeypatch.setattr(measure.workload, "weights", weights)
    return gpu


def tiny(*tokens: int, forms=(False,), given=tuple(FIELD)):
    return contests([case(count, TINY) for count in tokens], H200, forms=forms, given=given, candidates=False)


def test_everything_is_checked_and_the_best_few_are_measured_most(gpu):
    (one,) = wanted = tiny(4)
    assert gpu.measure(wanted) == [(1, 1, one.name)]
    assert gpu.bound == FIELD
    assert [(len(calls), rounds, settle) for calls, rounds, settle in gpu.interleaved] == [(16, 5, 0.0), (12, 15, 0.0), (5, 60, 1.0)]
    finals = gpu.held(one).finals(one, 60)
    assert list(finals) == FIELD[:5] and finals[FIELD[0]]["us"] == 100.0
    assert all(1e-4 < line["error"] < 2e-3 for line in finals.values())


def test_one_failing_schedule_costs_nobody_else_anything(gpu):
    (one,) = wanted = tiny(4)
    gpu.factors = {FIELD[0]: 1.05, FIELD[1]: CompileError("compile", "the source must please", {}, ""), FIELD[2]: RuntimeError("odd\nend")}
    gpu.measure(wanted)
    held = gpu.held(one)
    assert held.refused.keys() == {str(schedule) for schedule in FIELD[:3]}
    assert [why.split(":")[0] for why in held.refused.values()] == ["wrong result", "the source must please", "RuntimeError"]
    assert list(held.finals(one, 60)) == FIELD[3:8]


def test_after_a_fault_of_the_device_the_process_ends_and_the_schedule_is_known(gpu, monkeypatch):
    (one,) = wanted = tiny(4)
    gpu.factors = {FIELD[3]: RuntimeError("CUDA error: an illegal memory access was encountered")}

    class Broken(torch.Tensor):
        def norm(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    exact = check.exact
    monkeypatch.setattr(measure.check, "exact", lambda *given, **named: exact(*given, **named).as_subclass(Broken))
    monkeypatch.setattr(measure.check, "relative_l2", lambda out, wanted: 1e-3)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gpu.measure(wanted)
    assert gpu.held(one).refused.keys() == {str(FIELD[3])} and gpu.held(one).started is None


def test_a_contest_that_nobody_survives_is_finished(gpu):
    (one,) = wanted = tiny(4, given=FIELD[:2])
    gpu.factors = dict.fromkeys(FIELD, 2.0)
    gpu.measure(wanted)
    assert gpu.measure(wanted) == [] and gpu.interleaved == []
    assert gpu.held(one).finals(one, 60) == {}


def test_what_the_journal_holds_is_not_measured_again(gpu):
    wanted = tiny(1, 4, forms=(False, True))
    assert [step[:2] for step in gpu.measure(wanted)] == [(1, 4), (2, 4), (3, 4), (4, 4)] and gpu.weights == 1
    before = gpu.journal.path.read_bytes()
    assert gpu.measure(wanted) == [] and gpu.weights == 1 and gpu.journal.path.read_bytes() == before


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85, 0.999])
def test_a_run_that_is_killed_goes_on_where_it_was(gpu, share):
    """Cut the journal anywhere, as a kill does, within a line too: the second run ends at the same winners."""
    wanted = tiny(1, 4)
    gpu.factors = {FIELD[0]: 1.05}
    gpu.measure(wanted)
    whole = gpu.journal.path.read_bytes()
    winners = [list(gpu.held(one).finals(one, 60)) for one in wanted]
    gpu.journal.path.write_bytes(whole[: int(share * len(whole))])
    bound = len(gpu.bound)
    gpu.journal = Journal.read(gpu.journal.path)
    gpu.measure(wanted)
    assert [list(gpu.held(one).finals(one, 60)) for one in wanted] == winners
    assert len(gpu.bound) - bound < (2 - share) * bound + 1
    assert all(gpu.held(one).refused.keys() == {str(FIELD[0])} for one in wanted)


def test_a_stage_that_was_cut_is_measured_again_as_a_whole(gpu):
    (one,) = wanted = tiny(4)
    gpu.measure(wanted)
    lines = gpu.journal.path.read_bytes().splitlines(keepends=True)
    gpu.journal.path.write_bytes(b"".join(lines[:-2]))
    gpu.journal, gpu.interleaved, gpu.bound = Journal.read(gpu.journal.path), [], []
    gpu.measure(wanted)
    assert [len(calls) for calls, *_ in gpu.interleaved] == [5] and sorted(gpu.bound) == FIELD[:5]
    assert len({line["turn"] for line in gpu.held(one).timed[LAST, 60].values()}) == 1


def test_readers_take_turns_in_the_last_stage_where_they_are_asked_for(gpu, monkeypatch):
    class StandInReader:
        us = 50.0

    monkeypatch.setattr(measure.Reader, "of_weight", lambda form, packed, active: StandInReader())
    gpu.bench = Bench(H200, gpu.bench.generator, gpu.bench.flush, rounds=60, readers=True)
    (one,) = wanted = tiny(4, given=FIELD[:3])
    gpu.measure(wanted)
    ((calls, *_),) = gpu.interleaved
    assert len(calls) == 3 + len(measure.FORMS) and set(gpu.held(one).readers.values()) == {50.0}


def test_all_calls_of_a_contest_share_one_output(gpu, monkeypatch):
    seen = set()
    inner = gpu.scheduled

    def scheduled(*given, **named):
        bound = inner(*given, **named)
        seen.add(bound.out.data_ptr())
        return bound

    monkeypatch.setattr(measure.ours, "scheduled", scheduled)
    gpu.measure(tiny(4))
    assert len(seen) == 1
