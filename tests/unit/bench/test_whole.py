"""A whole layer from draw to row, on the CPU: ours by the reference, the peer by stand-ins that compute with torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from chord_jit import device, knobs
from chord_jit.bench import our_layer, peer_layer, peer_search, targets, whole, workload
from chord_jit.bench.indexed_cases import SMOKE_DRAWS
from chord_jit.bench.layers import Layer
from chord_jit.bench.measure import Bench
from chord_jit.bench.timing import Spread
from chord_jit.bench.whole_cases import WholeCase, WholeLayer
from chord_jit.errors import InputError
from chord_jit.formats.w4a16 import pack_w4a16
from chord_jit.reference import indexed as reference
from chord_jit.routing.indexed import IndexedRouting, align_blocks
from chord_jit.rows import route

GATE_UP, DOWN = Layer("tiny_gate_up", 16, 256, 256, True, False, "test"), Layer("tiny_down", 16, 256, 128, False, True, "test")
LAYER = WholeLayer("tiny_layer", GATE_UP, DOWN)
CASE = WholeCase(LAYER, SMOKE_DRAWS[0])


class StandInHumming:
    """Computes as the peer does; a configuration is off by its ``factor``, or raises where that is ``None``."""

    def __init__(self, layer, words, scale):
        self.weight, self.is_gate_up, self.experts = pack_w4a16(words, scale), layer.gated, layer.experts

    def own_configurations(self, layout):
        assert layout == "indexed"
        return [configuration("slow", 16), configuration("broken", 8, None), configuration("fast", 8), configuration("wrong", 16, 1.5)]

    def default(self, layout, rows):
        assert rows == CASE.rows
        return configuration("default", 8 if self.is_gate_up else 16)

    def defaults(self, layout, rows):
        assert layout == "offsets"
        return [configuration("grouped", 8) for _ in rows]

    def call(self, chosen, x, out, rows):
        def launch():
            if chosen.factor is None:
                raise RuntimeError("no such kernel")
            if "expert_layout" in rows:
                owners = torch.bucketize(torch.arange(x.shape[0]), rows["expert_layout"][1:], right=True).int().view(-1, 1)
                routing = align_blocks(owners, 8, self.weight.experts)
            else:
                parts = rows["sorted_ids"], rows["expert_ids"], rows["num_tokens_padded"]
                top_k = rows["top_k"]
                routing = IndexedRouting(*parts, top_k, chosen.block_m, x.shape[0] * top_k, self.weight.experts, self.weight.experts)
            out.copy_(reference.indexed(x, self.weight, routing) * chosen.factor)

        return launch

    def process(self, x, out, *, layout, scatter_idx=None, num_valid_tokens=None, **activation):
        if layout == "scatter":
            out[scatter_idx.long()] = x.unsqueeze(1)
        else:
            assert set(activation) == {"activation_type", "activation_impl"}
            gate, up = x.float().chunk(2, 1)
            out.copy_(gate * torch.sigmoid(gate) * up)


def configuration(name: str, block_m: int, factor: float | None = 1.0) -> SimpleNamespace:
    class Named(SimpleNamespace):
        def __str__(self) -> str:
            return name

    return Named(block_m=block_m, factor=factor)


class StandInRows:
    def __init__(self, ids, experts, block_m):
        self.ids, self.experts, self.block_m = ids, experts, block_m
        self.aligned = align_blocks(ids, max(block_m, 8), experts)
        self.offsets, self.places = route.groups(ids, experts)
        self.sorted_ids, self.expert_ids = self.aligned.sorted_ids, self.aligned.expert_ids
        self.padded = torch.zeros(1, dtype=torch.int32)

    def align(self):
        self.padded.copy_(self.aligned.num_tokens_padded)

    def group(self):
        pass


def combine(rows, topk_weights, out, places=None):
    taken = rows.unflatten(0, topk_weights.shape) if places is None else rows[places.long()]
    out.copy_((taken.float() * topk_weights.unsqueeze(-1)).sum(1))


def in_order(calls, flush, rounds, settle=0.0, seconds=None):
    """Later calls are slower; each one runs."""
    for call in calls.values():
        call()
    return {name: Spread.of([10.0 + place]) for place, name in enumerate(calls)}


@pytest.fixture
def bench(monkeypatch, seed):
    monkeypatch.setattr(whole, "Humming", StandInHumming)
    monkeypatch.setattr(peer_layer, "Rows", StandInRows)
    monkeypatch.setattr(peer_search, "Rows", StandInRows)
    monkeypatch.setattr(peer_layer, "combine", combine)
    for module in (our_layer, peer_search, whole):
        monkeypatch.setattr(module, "captured", lambda call: call)
    monkeypatch.setattr("chord_jit.bench.measure.interleave", in_order)
    monkeypatch.setattr(peer_search, "interleave", in_order)
    monkeypatch.setattr(whole, "host_time", lambda call, gpu_us: call() is None or Spread.of([30.0]))
    with knobs.scope(CHORD_BACKEND="reference"):
        yield Bench(device.target("sm_90a"), torch.Generator().manual_seed(seed), lambda: None, None, rounds=5, energy=False)


def drawn(bench: Bench, *, peer: bool = True) -> tuple[whole.Weights, list[str]]:
    failures: list[str] = []
    return whole.weights([CASE], bench.generator, failures, peer=peer), failures


def test_a_row_holds_the_layer_its_parts_and_the_peers(bench):
    weights, failures = drawn(bench)
    assert failures == [] and len(weights.ours) == len(weights.copies) == whole.LAYERS
    row = whole.measure(bench, CASE, weights)
    assert list(row["variants"]) == [
        "ours", "gate_up", "down", "route", "combine", "peer_default", "peer_best", "peer_align", "peer_gate_up", "peer_swiglu",
        "peer_down", "peer_combine",
    ]  # fmt: skip
    assert all(variant["us"] for variant in row["variants"].values())
    errors = {name: variant["error"] for name, variant in row["variants"].items() if "error" in variant}
    assert set(errors) == {"ours", "gate_up", "down", "combine", "peer_default", "peer_best"}
    assert 1e-3 < errors["ours"] < targets.LAYER_ERROR_LIMIT and 1e-3 < errors["peer_best"] < 6e-3
    assert (row["case"], row["kind"], row["rows"], row["layers"]) == ("tiny_layer_4", "layer", 32, 3)
    assert targets.over_products(row) == 10.0 - (11.0 + 12.0) and row["host_us"]["median"] == 30.0


def test_the_peer_takes_the_fastest_right_form(bench):
    weights, _ = drawn(bench)
    row = whole.measure(bench, CASE, weights)
    assert row["variants"]["peer_default"]["configuration"] == "indexed: default; default"
    # Earlier calls are faster here: of each block size the first right configuration, in pairs of one size and of two.
    assert set(row["peer_forms"]) == {"indexed: default; default", "indexed: default; fast", "indexed: slow; default"}
    assert row["variants"]["peer_best"]["configuration"] == "indexed: default; default" and "Triton" in row["stand_ins"]


def test_rows_copied_together_are_a_form_where_experts_have_many(bench, monkeypatch):
    weights, _ = drawn(bench)
    assert weights.pools.grouped == {}
    monkeypatch.setattr(peer_layer, "GROUPED_ROWS", 2)
    weights, _ = drawn(bench)
    assert whole.measure(bench, CASE, weights)["peer_forms"]["offsets: grouped; grouped"] == 13.0
    monkeypatch.setattr(StandInHumming, "defaults", lambda self, layout, rows: 1 / 0)
    weights, failures = drawn(bench)
    assert weights.pools.grouped == {} and weights.copies and failures == []


def test_a_form_that_raises_or_is_wrong_says_so_and_costs_no_other(bench, monkeypatch):
    monkeypatch.setattr(StandInHumming, "default", lambda self, layout, rows: configuration("bad", 8, None))
    weights, _ = drawn(bench)
    row = whole.measure(bench, CASE, weights)
    assert row["peer_forms"]["indexed: bad; bad"] == "no such kernel"
    assert row["variants"]["peer_default"]["refused"] == "no such kernel" and row["variants"]["peer_best"]["us"]
    monkeypatch.setattr(StandInHumming, "default", lambda self, layout, rows: configuration("off", 8, 1.3))
    row = whole.measure(bench, CASE, weights)
    assert row["peer_forms"]["indexed: off; off"].startswith("wrong: error") and row["variants"]["peer_default"]["us"] is None


def test_a_peer_that_cannot_be_made_leaves_our_times(bench, monkeypatch):
    monkeypatch.setattr(StandInHumming, "own_configurations", lambda self, layout: 1 / 0)
    weights, failures = drawn(bench)
    assert failures == ["tiny_layer: no peer: ZeroDivisionError: division by zero"] and len(weights.ours) == whole.LAYERS
    assert set(whole.measure(bench, CASE, weights)["variants"]) == {"ours", "gate_up", "down", "route", "combine"}
    assert drawn(bench, peer=False)[1] == []


def test_a_layer_that_is_wrong_gets_no_time(bench, monkeypatch):
    weights, _ = drawn(bench, peer=False)
    weights.ours[2] = whole.MoELayer(weights.ours[0].weights, top_k=8)
    exact = whole.Exact.of
    other = workload.weights(LAYER.down, bench.generator).plain

    def of_others(layers, inputs):
        return exact([*layers[:2], whole.MoEWeights(layers[2].gate_up, other)], inputs)

    monkeypatch.setattr(whole.Exact, "of", of_others)
    row = whole.measure(bench, CASE, weights)
    assert row["variants"]["ours"]["us"] is None and row["variants"]["ours"]["error"] > 0.1 and "host_us" not in row
    assert row["variants"]["gate_up"]["us"]


def test_a_refused_part_costs_only_itself(bench, monkeypatch):
    def refuse(*arguments):
        raise InputError("combine", "not today", {}, "wait")

    monkeypatch.setattr(our_layer, "combine_rows", refuse)
    weights, _ = drawn(bench, peer=False)
    row = whole.measure(bench, CASE, weights)
    assert "not today" in row["variants"]["combine"]["refused"] and row["variants"]["ours"]["us"]


def test_what_a_case_launches_is_its_products_both_ways_and_every_row_kernel():
    names = [name for name, _, spec in our_layer.launches(CASE, device.target("sm_90a")) if spec is not None]
    assert names == [*[f"{CASE.name} {name}" for name in ("gate_up", "down")] * 2, "route_rows", "move_rows", "combine_rows"]
