"""Samples: order, pairing of events and what a spread says, with events that only count time in launches."""

from __future__ import annotations

import pytest

from chord_jit.bench import timing
from chord_jit.bench.timing import Spread, interleave


class Clock:
    """A GPU that runs one thing at a time; every call takes its own milliseconds, an event takes none."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def work(self, name: str, ms: float):
        def run() -> None:
            self.log.append(name)
            self.now += ms

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    return clock


def test_the_load_settles_before_the_first_sample(clock, monkeypatch):
    seconds = iter([0.0, 0.1, 0.2, 0.3])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(seconds))
    interleave({"a": clock.work("a", 0.1)}, clock.work("flush", 1.0), rounds=1, settle=0.25)
    assert clock.log == ["flush", "a"] * (3 + timing._WARM_ROUNDS + 1)


@pytest.mark.parametrize(("seconds", "samples"), [(None, 400), (100.0, 400), (3.0, 30), (0.1, timing._LEAST_ROUNDS)])
def test_rounds_are_cut_to_the_time_that_they_may_take(clock, monkeypatch, seconds, samples):
    ticks = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 0.1 * next(ticks))
    calls = {"a": clock.work("a", 0.1)}
    assert interleave(calls, clock.work("flush", 1.0), rounds=400, settle=0.35, seconds=seconds)["a"].samples == samples


def test_without_a_load_there_is_no_pace_to_cut_by(clock):
    assert interleave({"a": clock.work("a", 0.1)}, clock.work("flush", 1.0), rounds=50, seconds=0.0)["a"].samples == 50


def test_a_sample_holds_the_call_and_not_the_flush(clock):
    calls = {"a": clock.work("a", 0.25), "b": clock.work("b", 0.5)}
    times = interleave(calls, clock.work("flush", 4.0), rounds=10)
    assert times == {"a": Spread(250.0, 250.0, 250.0, 10), "b": Spread(500.0, 500.0, 500.0, 10)}
    assert clock.log[::2] == ["flush"] * (len(clock.log) // 2)


def test_every_round_has_every_call_in_changing_order(clock):
    names = ("a", "b", "c", "d")
    interleave({name: clock.work(name, 0.1) for name in names}, clock.work("flush", 1.0), rounds=20)
    launched = clock.log[1::2]
    rounds = [tuple(launched[start : start + 4]) for start in range(0, len(launched), 4)]
    assert all(sorted(one) == list(names) for one in rounds)
    followers = {(first, second) for one in rounds for first, second in zip(one, one[1:], strict=False)}
    assert len(followers) == 12


def test_warm_rounds_are_dropped(clock):
    slow_start = iter([9.0] * 3 + [0.1] * 5)

    def call() -> None:
        clock.now += next(slow_start)

    assert interleave({"a": call}, clock.work("flush", 1.0), rounds=5)["a"].p90 == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("samples", "spread"),
    [
        ([3.0], Spread(3.0, 3.0, 3.0, 1)),
        ([5.0, 1.0, 3.0], Spread(3.0, 1.0, 5.0, 3)),
        (list(range(101, 0, -1)), Spread(51, 11, 91, 101)),
    ],
)
def test_spread(samples, spread):
    assert Spread.of(samples) == spread
