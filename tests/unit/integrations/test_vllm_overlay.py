"""When the plugin overlays vLLM's facade, and that it waits until a name is asked for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chord_jit import knobs
from chord_jit.integrations import vllm as plugin
from chord_jit.integrations.vllm import notes
from tests.unit.integrations import fake_vllm
from tests.unit.integrations.fake_vllm import Facade, install

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(notes, "_said", set())
    with knobs.scope(CHORD_BACKEND="reference"):
        yield


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.chord_jit"]


@pytest.mark.parametrize("version", ["0.30.0", "0.31.1", "0.32.0", "0.33.0", "0.33.1.dev7+gabc"])
def test_registering_asks_humming_for_nothing(monkeypatch, caplog, version):
    caplog.set_level("INFO")
    facade = install(monkeypatch, Facade(), version)
    plugin.register()
    assert facade.resolved == [] and lines(caplog) == []
    assert facade.humming_forward.__wrapped__ is not None and facade.resolved == ["humming_forward"]
    assert facade.dtypes is fake_vllm.DTYPES


def test_names_that_were_asked_for_before_are_overlaid_too(monkeypatch):
    facade = install(monkeypatch, Facade())
    before = facade.humming_forward
    plugin.register()
    assert facade.humming_forward.__wrapped__ is before


def test_registering_again_changes_nothing(monkeypatch):
    facade = install(monkeypatch, Facade())
    plugin.register()
    first = facade.humming_forward, facade.__getattr__
    plugin.register()
    assert (facade.humming_forward, facade.__getattr__) == first
    assert not hasattr(first[0].__wrapped__, "__wrapped__")


@pytest.mark.parametrize("version", ["0.29.1", "0.34.0", "1.0.0", "dev", "unknown"])
def test_other_versions_are_left_alone(monkeypatch, caplog, version):
    caplog.set_level("INFO")
    facade = install(monkeypatch, Facade(), version)
    original = facade.__getattr__
    plugin.register()
    plugin.register()
    assert facade.__getattr__ is original and not hasattr(facade.humming_forward, "__wrapped__")
    assert lines(caplog) == [f"chord_jit: off: vLLM {version} is not one of 0.30 to 0.33; its layers stay with Humming"]


def test_the_knob_turns_it_off(monkeypatch, caplog):
    caplog.set_level("INFO")
    facade = install(monkeypatch, Facade())
    with knobs.scope(CHORD_VLLM="0"):
        plugin.register()
    assert not hasattr(facade.humming_forward, "__wrapped__")
    assert lines(caplog) == ["chord_jit: off: CHORD_VLLM=0"]


@pytest.mark.parametrize(
    "without, said",
    [
        ("humming_forward", "humming_forward"), ("LayerConfig", "LayerConfig"),
        ("may_process_input", "may_process_input or may_quant_input"),
        ("prepare_and_transform_humming_tensors", "prepare_and_transform_humming_tensors or prepare_layer_config"),
    ],
)  # fmt: skip
def test_a_facade_that_lacks_a_name_is_left_alone(monkeypatch, caplog, without, said):
    caplog.set_level("INFO")
    facade = install(monkeypatch, Facade(without=(without,)))
    plugin.register()
    assert not hasattr(facade.get_heuristics_config, "__wrapped__")
    assert lines(caplog) == [f"chord_jit: off: vllm.utils.humming of vLLM 0.33.0 lacks {said}; its layers stay with Humming"]


def test_an_older_facade_without_its_second_half_is_left_alone(monkeypatch, caplog):
    caplog.set_level("INFO")
    install(monkeypatch, Facade(older=True, without=("transform_humming_tensors",)), "0.30.0")
    plugin.register()
    assert "lacks transform_humming_tensors;" in lines(caplog)[0]


def test_a_vllm_without_the_facade_is_left_alone(monkeypatch, caplog):
    caplog.set_level("INFO")
    install(monkeypatch, Facade())
    monkeypatch.setitem(sys.modules, "vllm.utils.humming", None)
    plugin.register()
    assert len(lines(caplog)) == 1 and "offers no vllm.utils.humming" in lines(caplog)[0]


def test_configs_of_humming_go_to_humming(monkeypatch):
    facade = install(monkeypatch, Facade())
    plugin.register()
    theirs = object()
    for name in ("humming_forward", "may_process_input", "get_heuristics_config"):
        assert getattr(facade, name)(theirs) == "upstream"
    assert facade.get_heuristics_config(layer_config=theirs) == "upstream"
    assert [name for name, config in facade.reached if config is theirs] == [
        "humming_forward", "may_process_input", "get_heuristics_config", "get_heuristics_config"
    ]  # fmt: skip


def test_importing_the_plugin_imports_neither_torch_nor_vllm():
    code = "import sys, chord_jit.integrations.vllm; print([name for name in ('torch', 'vllm', 'humming') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


def test_the_entry_point_is_the_function():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, name = points["chord_jit"].split(":")
    assert getattr(import_module(module), name) is plugin.register


def test_a_dense_layer_compiles_whole_through_the_overlay(monkeypatch):
    """vLLM compiles models with their dense layers: what hands them on must not break the graph."""
    facade = install(monkeypatch, Facade())
    facade.humming_forward = lambda config, inputs: inputs + config.shape_n
    plugin.register()

    @torch.compile(backend="eager", fullgraph=True)
    def dense(x: torch.Tensor) -> torch.Tensor:
        from vllm.utils.humming import humming_forward

        return humming_forward(theirs, inputs=x)

    theirs = SimpleNamespace(shape_n=3)
    assert dense(torch.ones(2)).tolist() == [4, 4]
