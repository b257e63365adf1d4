"""Loading a rank's share of all layers: every slice, which layers, what is read of a tensor, how much memory it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats import expert_reader, shards
from chord_jit.formats.checkpoint import load_moe_layer, load_moe_layers
from chord_jit.formats.model_config import ModelShape
from chord_jit.formats.share import Share
from tests.unit.formats import tiny_layers as tiny
from tests.unit.formats.live_bytes import LiveBytes, mapped

EXPERTS, HIDDEN, INNER = 4, 64, 128
SIZES = (2, EXPERTS, HIDDEN, INNER)
CUTS = [(ep, tp, rank) for ep in (1, 2, 4) for tp in (1, 2, 4) for rank in range(ep * tp)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[Path, tiny.Known]:
    folder = tmp_path_factory.mktemp("model")
    return folder, tiny.write(folder, 77, [1, 2], tiny.config(*SIZES))


def slices(ep, tp, rank):
    experts, neurons = EXPERTS // ep, INNER // tp
    first, start = rank // tp * experts, rank % tp * neurons
    return slice(first, first + experts), slice(start, start + neurons)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_share_is_what_its_slice_packs_to(model, cut):
    folder, known = model
    ep, tp, rank = cut
    calls = []
    loaded = load_moe_layers(folder, ep=ep, tp=tp, rank=rank, progress=lambda *call: calls.append(call))
    assert list(loaded) == [1, 2]
    assert all(tiny.same(weights, tiny.share_of(known[layer], *slices(*cut))) for layer, weights in loaded.items())
    experts = range(EXPERTS)[slices(*cut)[0]]
    wanted = [(layer, expert) for layer in (1, 2) for expert in experts]
    assert calls == [(done + 1, len(wanted), item) for done, item in enumerate(wanted)]


def test_one_rank_of_one_is_the_whole_layer_and_rows_may_stay_apart(model):
    folder, known = model
    for interleave in (True, False):
        whole = load_moe_layers(folder, layers=[2], interleave=interleave)
        assert list(whole) == [2] and tiny.same(whole[2], load_moe_layer(folder, 2, interleave=interleave))
        assert tiny.same(whole[2], tiny.share_of(known[2], slice(0, EXPERTS), slice(0, INNER), interleave))


@settings(max_examples=60)
@given(ep=st.integers(1, 12), tp=st.integers(1, 12), experts=st.integers(1, 8), groups=st.integers(1, 8))
def test_shares_cover_everything_once(ep, tp, experts, groups):
    shape = ModelShape(64, 32 * groups * tp, experts * ep, 1, (0,))
    cells = [
        (expert, neuron) for rank in range(ep * tp) for share in [Share(ep, tp, rank)]
        for expert in share.experts(shape) for neuron in share.neurons(shape)[::32]
    ]
    assert sorted(cells) == [(expert, neuron) for expert in range(shape.experts) for neuron in range(0, shape.moe_intermediate, 32)]
    assert [cells[0], cells[-1]] == [(0, 0), (shape.experts - 1, shape.moe_intermediate - 32)]


BAD_SHARES = [
    ({"ep": 3}, InputError, "ep must divide.*experts=4, ep=3"),
    ({"tp": 8}, InputError, "whole groups of 32.*moe_intermediate_size=128, tp=8"),
    ({"tp": 3}, InputError, "whole groups of 32.*tp=3"),
    ({"ep": 0}, InputError, "at least 1.*ep=0"),
    ({"tp": -1}, InputError, "at least 1.*tp=-1"),
    ({"ep": 2, "tp": 2, "rank": 4}, InputError, "rank in 0.*rank=4.*ep_rank"),
    ({"rank": 1}, InputError, "rank=1"),
    ({"rank": -1}, InputError, "rank=-1"),
    ({"ep": 2.0}, InputTypeError, "integers.*ep=2.0"),
    ({"tp": True}, InputTypeError, "integers.*tp=True"),
    ({"layers": [1, 1]}, InputError, "named once.*layers=1, 1"),
    ({"layers": [0, 1]}, InputError, "load layer 0"),
    ({"layers": []}, InputError, "named once"),
]


@pytest.mark.parametrize(("asked", "error", "says"), BAD_SHARES, ids=[str(asked) for asked, *_ in BAD_SHARES])
def test_what_cannot_be_asked_for(model, asked, error, says):
    with pytest.raises(error, match=f"(?s){says}") as caught:
        load_moe_layers(model[0], **asked)
    assert caught.value.remedy


QWEN = {"n_routed_experts": None, "num_experts": 2, "first_k_dense_replace": None, "moe_layer_freq": None}
#: Changes of the config, prefix, and the layers of six that have experts.
MODELS = {
    "Kimi K2 Thinking": ({"num_hidden_layers": 6}, "", [1, 2, 3, 4, 5]),
    "Kimi K2.5": ({"num_hidden_layers": 6, "first_k_dense_replace": 4}, "language_model.", [4, 5]),
    "every second": ({"num_hidden_layers": 6, "moe_layer_freq": 2}, "", [2, 4]),
    "Qwen3": (QWEN | {"num_hidden_layers": 6, "mlp_only_layers": [5], "decoder_sparse_step": 2}, "", [1, 3]),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_moe_layers_of_a_model(tmp_path, seed, name):
    changes, prefix, layers = MODELS[name]
    content = tiny.config(5, 2, 32, 32, **changes)
    known = tiny.write(tmp_path, seed, layers, content, prefix)
    if prefix:
        outside = {"quantization_config": content.pop("quantization_config")}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": content, **outside}))
    loaded = load_moe_layers(tmp_path)
    assert list(loaded) == layers
    assert all(tiny.same(loaded[layer], tiny.share_of(known[layer], slice(0, 2), slice(0, 32))) for layer in layers)


def test_a_layer_that_is_not_there_is_named_before_a_weight_is_read(tmp_path, seed, monkeypatch):
    tiny.write(tmp_path, seed, [1], tiny.config(2, 2, 32, 32))
    monkeypatch.setattr(shards.Shards, "tensor", None)
    with pytest.raises(InputError, match=r"missing=18, of=18, first=model\.layers\.2\.mlp\.experts\.0\.gate_proj\.weight_packed"):
        load_moe_layers(tmp_path)


class Counting:
    """Stands in for ``safe_open``: counts the weight elements that slices hand out, and has no way to a whole tensor."""

    def __init__(self, opened, read: dict[str, int]):
        self.opened, self.read, self.keys = opened, read, opened.keys

    def get_slice(self, name):
        whole, read = self.opened.get_slice(name), self.read

        class Slice:
            get_shape, get_dtype = whole.get_shape, whole.get_dtype

            def __getitem__(self, part):
                tensor = whole[part]
                read[name] = read.get(name, 0) + tensor.numel()
                return tensor

        return Slice()


def test_ranks_read_each_element_of_a_weight_once(model, monkeypatch):
    folder, known = model
    read, per_rank, open_file = {}, [], shards.safe_open

    class Opened:
        def __init__(self, *arguments, **named):
            self.opened = open_file(*arguments, **named)

        def __enter__(self):
            return Counting(self.opened.__enter__(), read)

        def __exit__(self, *exception):
            return self.opened.__exit__(*exception)

    monkeypatch.setattr(shards, "safe_open", Opened)
    for rank in range(8):
        load_moe_layers(folder, layers=[1], ep=2, tp=4, rank=rank)
        per_rank.append(sum(count for name, count in read.items() if not name.endswith("_shape")))
    wanted = {}
    for proj, (codes, scale) in known[1].items():
        for expert in range(EXPERTS):
            name = f"model.layers.1.mlp.experts.{expert}.{proj}_proj.weight"
            wanted |= {f"{name}_packed": codes[expert].numel() // 8, f"{name}_scale": scale[expert].numel()}
    assert {name: count for name, count in read.items() if not name.endswith("_shape")} == wanted
    assert per_rank == [sum(wanted.values()) * (rank + 1) // 8 for rank in range(8)]


@pytest.mark.parametrize("copies", [False, True], ids=["CPU", "device"])
@pytest.mark.parametrize("tp", [1, 2])
def test_memory_is_the_result_and_less_than_two_experts(tmp_path, seed, monkeypatch, copies, tp):
    """``device``: the matrices are copied before they are packed, as they are to a GPU."""
    inner, hidden = 256, 512
    if copies:
        monkeypatch.setattr(expert_reader, "copied", lambda tensor, device: tensor.clone())
    beyond = {}
    for experts in (2, 4):
        folder = tmp_path / str(experts)
        tiny.write(folder, seed, [1, 2], tiny.config(2, experts, hidden, inner))
        with LiveBytes() as live:
            loaded = load_moe_layers(folder, tp=tp)
        beyond[experts] = live.peak - sum(part.nbytes for layer in loaded.values() for part in (layer.gate_up, layer.down))
    expert = 3 * inner * hidden * 9 // 16 // tp
    assert expert * copies < beyond[4] < 2 * expert, "under two experts, in rows and columns that this rank holds"
    assert abs(beyond[4] - beyond[2]) < 2048, "the number of experts must not show"


def test_weights_outlive_the_files_that_they_came_from(tmp_path, seed):
    known = tiny.write(tmp_path, seed, [1], tiny.config(1, 2, 32, 32))
    loaded = load_moe_layers(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"")
    assert tiny.same(loaded[1], tiny.share_of(known[1], slice(0, 2), slice(0, 32)))
    assert isinstance(loaded[1].down.data, torch.Tensor) and not mapped(loaded[1].down.data.data_ptr())
