"""The list of families, and a family from outside the package that goes through the same machine."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar

import pytest

from chord_jit import api, assets, device, knobs
from chord_jit.families import base
from chord_jit.jit import compiler, counters, engine
from chord_jit.jit.key import key_of
from tests.toy import family as toy
from tests.toy.fake import FakeCompiler

METHODS = [name for name, member in vars(base.Family).items() if inspect.isfunction(member) and not name.startswith("_")]


@dataclass(frozen=True)
class Request(toy.ToyProblem):
    """The toy's problem as the registry wants it."""

    family: ClassVar[str] = "toy"


@pytest.fixture
def registered(monkeypatch, tmp_path):
    """The toy family under its name, its assets, and a cache of its own."""
    monkeypatch.setitem(base.FAMILIES, "toy", "tests.toy.family")
    monkeypatch.setattr(device, "present", lambda: False)
    with assets.scope(toy.ASSETS), knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "cache")):
        engine.forget()
        counters.reset()
        yield
        engine.forget()


@pytest.mark.parametrize("name", base.FAMILIES)
def test_v37_a_listed_family_keeps_the_protocol(name):
    owner = base.family(name)
    assert owner.name == name
    for method in METHODS:
        wanted = list(inspect.signature(getattr(base.Family, method)).parameters)[1:]
        assert list(inspect.signature(getattr(owner, method)).parameters) == wanted, method


def test_v37_a_deployment_has_problems_of_every_listed_family():
    asked = base.deployment_problems(api.Deployment(1024, 512, 8, 2), device.target("sm_90a"))
    assert {problem.family for problem in asked} == set(base.FAMILIES)


def test_an_unknown_family_is_no_family():
    with pytest.raises(KeyError):
        base.family("cooking")


def test_a_new_family_compiles_caches_and_warms_up(registered, tmp_path):
    fake = FakeCompiler(tmp_path / "ledger")
    problems = [Request("sm_90a", scale) for scale in (1, 2, 3, 3)]
    with compiler.scope(fake):
        first = api.warm_up(problems)
        second = api.warm_up(problems)
    assert (first.compiled, first.hit, first.failed) == (3, 0, 0)
    assert (second.compiled, second.hit, second.failed) == (0, 3, 0)
    assert len(fake.compiles()) == 3


def test_a_new_family_compiles_for_real(registered):
    report = api.warm_up([Request("sm_90a", 5)])
    assert (report.compiled, report.failed) == (1, 0), report
    spec = toy.FAMILY.spec(Request("sm_90a", 5), toy.FAMILY.schedule(Request("sm_90a", 5)))
    entry = engine.build(spec)
    assert entry.digest == key_of(spec).digest and entry.facts["spill_bytes"] == 0
