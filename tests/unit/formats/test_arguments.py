"""What the loaders are asked for: numbers that are none, and devices that are not there, are refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import chord_jit
from chord_jit.errors import InputError, InputTypeError, UnsupportedDeviceError
from chord_jit.formats.arguments import device_of
from chord_jit.formats.checkpoint import load_moe_layer, load_moe_layers
from chord_jit.formats.packed_load import load_packed
from chord_jit.formats.packed_write import pack_checkpoint
from tests.unit.formats import tiny_layers as tiny


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    tiny.write(folder / "model", 9, [1, 2], tiny.config(2, 4, 96, 64))
    pack_checkpoint(folder / "model", folder / "packed")
    return folder


#: By name: a loader, to be handed the folder and arguments.
LOADERS = {
    "load_moe_layers": lambda folder, **named: load_moe_layers(folder / "model", **named),
    "load_moe_layer": lambda folder, **named: load_moe_layer(folder / "model", 1, **named),
    "load_packed": lambda folder, **named: load_packed(folder / "packed", **named),
    "from_checkpoint": lambda folder, **named: chord_jit.MoELayer.from_checkpoint(folder / "model", layer=1, **named),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")], ids=str)
@pytest.mark.parametrize("name", LOADERS)
def test_without_a_gpu_the_cpu_is_offered(origin, monkeypatch, name, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedDeviceError, match='(?s)device=cuda.*device="cpu"'):
        LOADERS[name](origin, device=device)


def test_the_call_of_the_readme_without_a_gpu(origin, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedDeviceError, match='device="cpu"'):
        LOADERS["from_checkpoint"](origin)


@pytest.mark.parametrize("index, there", [(0, True), (1, True), (2, False)])
def test_a_gpu_must_be_one_of_those_that_are_there(monkeypatch, index, there):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    assert device_of(None) == torch.device("cuda", 1) and device_of("cuda") == torch.device("cuda")
    if there:
        assert device_of(f"cuda:{index}") == torch.device("cuda", index)
        return
    with pytest.raises(UnsupportedDeviceError, match="device=cuda:2, GPUs=2"):
        device_of(f"cuda:{index}")


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:x", 3.5, ["cpu"]], ids=repr)
@pytest.mark.parametrize("name", LOADERS)
def test_what_names_no_device(origin, name, device):
    with pytest.raises(InputError, match="must name a device of torch"):
        LOADERS[name](origin, device=device)


WRONG = [1, True, [True], [1.0], ["1"], "1", [None], [1, "2"], [torch.tensor(1)]]
TAKES = {
    "load_moe_layers": ("layers", lambda folder, given: load_moe_layers(folder / "model", layers=given)),
    "load_packed": ("layers", lambda folder, given: load_packed(folder / "packed", given)),
    "pack_checkpoint": ("layers", lambda folder, given: pack_checkpoint(folder / "model", folder / "new", layers=given)),
    "load_moe_layer": ("experts", lambda folder, given: load_moe_layer(folder / "model", 1, experts=given)),
}  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=repr)
@pytest.mark.parametrize("name", TAKES)
def test_layers_and_experts_are_plain_integers(origin, name, given):
    takes, load = TAKES[name]
    with pytest.raises(InputTypeError, match=f"{takes} must be integers"):
        load(origin, given)
    assert not (origin / "new").exists()


@pytest.mark.parametrize("layer", [True, 1.0, "1", None, [1]], ids=repr)
def test_one_layer_is_a_plain_integer(origin, layer):
    for load in (load_moe_layer, partial(chord_jit.MoELayer.from_checkpoint, device="cpu")):
        with pytest.raises(InputTypeError, match="layers must be integers"):
            load(origin / "model", layer)


@pytest.mark.parametrize("given", [[2], (2,), {2}, range(2, 3), iter([2]), np.arange(2, 3)], ids=repr)
def test_any_iterable_of_integers_will_do(origin, given):
    assert list(load_moe_layers(origin / "model", layers=given)) == [2]
