"""``warm_up`` by problems: what is loaded afterwards, what is left out, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from chord_jit import api, device
from chord_jit.device import DeviceFacts, target
from chord_jit.errors import CompileError, InputTypeError, UnsupportedDeviceError
from chord_jit.families import base
from chord_jit.jit import warmup
from tests.toy import family as toy

HERE = target("sm_90a")


@dataclass(frozen=True)
class Request(toy.ToyProblem):
    """The toy's problem on a GPU."""

    facts: DeviceFacts = HERE
    family: ClassVar[str] = "toy"


@pytest.fixture
def loaded(fake, monkeypatch):
    """Scales of the problems that were loaded, on a machine whose second GPU is current."""
    seen = []
    monkeypatch.setitem(base.FAMILIES, "toy", "tests.toy.family")
    monkeypatch.setattr(toy.FAMILY, "prepare", lambda problem, schedule, index: seen.append((problem.scale, index)), raising=False)
    monkeypatch.setattr(device, "present", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr(device, "facts", lambda index: HERE)
    return seen


def test_problems_of_the_current_gpu_are_loaded_and_others_only_compiled(loaded):
    report = api.warm_up([Request("sm_90a", 1), Request("sm_100a", 2, target("sm_100a")), Request("sm_90a", 3)])
    assert (report.compiled, report.failed) == (3, 0) and loaded == [(1, 1), (3, 1)]


def test_a_gpu_without_kernels_compiles_for_others(loaded, monkeypatch):
    def refuse(index):
        raise UnsupportedDeviceError("run a kernel", "the capability must match", {"capability": "8.0"}, "run elsewhere")

    monkeypatch.setattr(device, "facts", refuse)
    assert api.warm_up([Request("sm_90a", 1)]).compiled == 1 and loaded == []
    assert device.current() is None


def test_a_kernel_that_fails_is_reported_and_not_loaded(loaded, monkeypatch, fake):
    class Picky:
        def compile(self, request):
            if "kScale = 2;" in request.source:
                raise CompileError("compile the toy", "the source must please", {}, "please it", "line 1: no")
            return fake.compile(request)

    monkeypatch.setattr(warmup, "Pool", lambda compiler: _Here(Picky()))
    report = api.warm_up([Request("sm_90a", scale) for scale in (1, 2, 3)])
    assert (report.compiled, report.failed) == (2, 1) and loaded == [(1, 1), (3, 1)]


@pytest.mark.parametrize("gpu", [True, False])
def test_v37_a_deployment_is_asked_of_every_family(loaded, monkeypatch, gpu):
    asked = []

    def deployment(model, facts):
        asked.append((model, facts))
        return [Request(facts.arch, scale, facts) for scale in (1, 2)]

    monkeypatch.setattr(base, "FAMILIES", {"toy": "tests.toy.family"})
    monkeypatch.setattr(toy.FAMILY, "deployment", deployment, raising=False)
    monkeypatch.setattr(device, "present", lambda: gpu)
    model = api.Deployment(1024, 512, 8, 2, ep=2)
    report = api.warm_up(model)
    assert asked == [(model, HERE)] and (report.compiled, report.failed) == (2, 0)
    assert loaded == ([(1, 1), (2, 1)] if gpu else [])


class _Here:
    """A pool that compiles in this process."""

    def __init__(self, compiler):
        self.compile = compiler.compile

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("problem", [3, None, HERE, toy.spec()], ids=lambda problem: type(problem).__name__)
def test_what_is_no_problem_is_refused(fake, problem):
    with pytest.raises(InputTypeError, match="one of a family") as caught:
        api.warm_up([problem])
    assert type(problem).__name__ in str(caught.value) and fake.compiles() == []
