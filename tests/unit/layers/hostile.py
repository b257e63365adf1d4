"""Calls of a small MoE layer that go wrong in the field: hostile routings, and arguments that must be refused. On any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import chord_jit
from chord_jit.errors import ChordError, InputError, InputTypeError
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.reference.moe import moe
from tests.gpu.tensors import moved, strided
from tests.unit.layers.random_layer import random_layer

#: No size is a multiple of a panel or of a block of K, so every edge is padded.
EXPERTS, HIDDEN, NEURONS, TOP_K = 6, 96, 160, 3
#: One, and counts with which the slots of all blocks are no multiple of a block.
TOKENS = (1, 9, 131)
WAYS = ("indexed", "contiguous")
#: Relative error of all results together, and of one token's: BF16 weights, activated rows, rows and sums.
ALL, ROW = 6e-3, 2e-2
INT32, FAR = torch.iinfo(torch.int32), 1 << 32


@dataclass(frozen=True)
class Call:
    """One call of one layer."""

    weights: MoEWeights
    x: torch.Tensor
    ids: torch.Tensor
    factors: torch.Tensor
    expert_map: torch.Tensor | None = None
    shared: torch.nn.Module | None = None

    def layer(self) -> chord_jit.MoELayer:
        return chord_jit.MoELayer(self.weights, top_k=TOP_K, expert_map=self.expert_map, shared=self.shared)

    def result(self, **options) -> torch.Tensor:
        return self.layer()(self.x, self.ids, self.factors, **options)

    def exact(self) -> torch.Tensor:
        shared = None if self.shared is None else self.shared(self.x)
        return moe(self.x, self.weights, self.ids, self.factors, expert_map=self.expert_map, shared=shared)


def draw(tokens: int, where: torch.device | str, *, ids: torch.dtype = torch.int64) -> Call:
    """Distinct experts for each token, by the global generators."""
    chosen = torch.rand(tokens, EXPERTS, device=where).argsort(1)[:, :TOP_K].to(ids).contiguous()
    x, factors = torch.randn(tokens, HIDDEN, device=where).bfloat16(), torch.rand(tokens, TOP_K, device=where) + 0.1
    return Call(random_layer(EXPERTS, HIDDEN, NEURONS, device=where), x, chosen, factors)


def assert_right(result: torch.Tensor, exact: torch.Tensor) -> None:
    """Close to ``exact`` everywhere, and zero where that is zero."""
    assert result.dtype is torch.bfloat16 and result.shape == exact.shape
    assert bool(result.isfinite().all())
    empty = (exact == 0).all(1)
    assert not bool(result[empty].any()), "a token without an expert must be zero"
    if bool(empty.all()):
        return
    error = result.double() - exact
    rows = (error.norm(dim=1) / exact.norm(dim=1))[~empty]
    found, worst = float(error.norm() / exact.norm()), float(rows.max())
    assert found < ALL and worst < ROW, f"relative error {found:.2e}, limit {ALL}; of the worst token {worst:.2e}, limit {ROW}"


# -- routings -----------------------------------------------------------------------------------------------------------
def dropped(call: Call) -> Call:
    """A third of the ids and all of the last token's are -1; their routing weights are NaN and must not be read."""
    nowhere = torch.rand(call.factors.shape, device=call.x.device) < 1 / 3
    nowhere[-1] = True
    return replace(call, ids=call.ids.masked_fill(nowhere, -1), factors=call.factors.masked_fill(nowhere, float("nan")))


def out_of_range(call: Call) -> Call:
    """Ids of no expert: just past the last one, of both ends of their type, and in 64 bits such as end in 32 bits of a valid one."""
    wrong = [EXPERTS, EXPERTS + 1, 1000, -2, INT32.max, INT32.min]
    if call.ids.dtype is torch.int64:
        wrong += [FAR, FAR + 1, -FAR + 2, 1 << 62]
    ids, flat = call.ids.clone(), torch.arange(call.ids.numel(), device=call.ids.device)
    spots = flat % 2 == 0
    ids.view(-1)[spots] = torch.tensor(wrong, dtype=ids.dtype, device=ids.device)[flat[spots] // 2 % len(wrong)]
    return replace(call, ids=ids, factors=call.factors.masked_fill(spots.view_as(ids), float("nan")))


def with_map(*entries: int) -> Callable[[Call], Call]:
    return lambda call: replace(call, expert_map=torch.tensor(entries, dtype=torch.int32, device=call.x.device))


ROUTINGS: dict[str, Callable[[Call], Call]] = {
    "distinct": lambda call: call,
    "dropped": dropped,
    "an expert twice": lambda call: replace(call, ids=call.ids[:, :1].repeat(1, TOP_K)),
    "all on one expert": lambda call: replace(call, ids=torch.full_like(call.ids, 4)),
    "out of range": out_of_range,
    "nobody's": lambda call: replace(call, ids=torch.full_like(call.ids, -1), factors=call.factors * float("nan")),
    "a map": with_map(-1, 5, 0, -1, 2, 1, 3),
    "ids past the map": with_map(3, 1, 0),
    "a map of none": with_map(*[-1] * EXPERTS),
    "a map out of range": with_map(0, EXPERTS, -3, INT32.max, INT32.min, 2),
    "a strided map": lambda call: replace(call, expert_map=strided(with_map(2, -1, 0, 1, 5, -1)(call).expert_map[:, None])[:, 0]),
}


def replaced_states(call: Call) -> tuple[Call, dict[str, torch.Tensor]]:
    """``call`` on other weights, and the state of a layer with other neurons, whose load must fail."""
    small = random_layer(EXPERTS, HIDDEN, 32, device=call.x.device)
    other = replace(call, weights=random_layer(EXPERTS, HIDDEN, NEURONS, device=call.x.device))
    return other, {"gate_up": small.gate_up.data, "down": small.down.data}


# -- refusals -----------------------------------------------------------------------------------------------------------
def other_place(tensor: torch.Tensor) -> torch.Tensor:
    """Of the same shape on another device."""
    return tensor.cpu() if tensor.is_cuda else tensor.to("meta")


def off_alignment(call: Call, name: str) -> Call:
    """``call`` with one packed weight at an odd address."""
    packed = getattr(call.weights, name)
    return replace(call, weights=replace(call.weights, **{name: replace(packed, data=moved(packed.data))}))


#: name: the error, the argument that is named, and the change to a good call.
BAD: dict[str, tuple[type[ChordError], str, Callable[[dict], dict]]] = {
    "x float16": (InputTypeError, "x", lambda call: dict(x=call["x"].half())),
    "x a list": (InputTypeError, "x", lambda call: dict(x=call["x"].tolist())),
    "x too narrow": (InputError, "hidden", lambda call: dict(x=call["x"][:, :64].contiguous())),
    "x too wide": (InputError, "hidden", lambda call: dict(x=torch.cat((call["x"], call["x"]), 1))),
    "x 3-D": (ChordError, "x", lambda call: dict(x=call["x"].unsqueeze(0))),
    "x with rows apart": (InputError, "x", lambda call: dict(x=strided(call["x"]))),
    "x off alignment": (InputError, "x", lambda call: dict(x=moved(call["x"]))),
    "x that wants a gradient": (InputError, "gradient", lambda call: dict(x=call["x"].clone().requires_grad_())),
    "routing weights that want a gradient": (
        InputError, "gradient", lambda call: dict(topk_weights=call["topk_weights"].clone().requires_grad_()),
    ),
    "x elsewhere": (InputError, "device", lambda call: dict(x=other_place(call["x"]))),
    "x of fewer tokens": (InputError, "topk_ids", lambda call: dict(x=call["x"][:-1])),
    "ids float": (InputTypeError, "topk_ids", lambda call: dict(topk_ids=call["topk_ids"].float())),
    "ids int16": (InputTypeError, "topk_ids", lambda call: dict(topk_ids=call["topk_ids"].short())),
    "ids None": (InputTypeError, "topk_ids", lambda call: dict(topk_ids=None)),
    "ids flat": (InputError, "topk_ids", lambda call: dict(topk_ids=call["topk_ids"].view(-1))),
    "ids of another top_k": (InputError, "topk_ids", lambda call: dict(topk_ids=call["topk_ids"][:, :2].contiguous())),
    "ids with rows apart": (InputError, "topk_ids", lambda call: dict(topk_ids=strided(call["topk_ids"]))),
    "ids elsewhere": (InputError, "topk_ids", lambda call: dict(topk_ids=other_place(call["topk_ids"]))),
    "routing weights bfloat16": (InputTypeError, "topk_weights", lambda call: dict(topk_weights=call["topk_weights"].bfloat16())),
    "routing weights float64": (InputTypeError, "topk_weights", lambda call: dict(topk_weights=call["topk_weights"].double())),
    "routing weights None": (InputTypeError, "topk_weights", lambda call: dict(topk_weights=None)),
    "routing weights one per token": (InputError, "topk_weights", lambda call: dict(topk_weights=call["topk_weights"][:, :1].contiguous())),
    "routing weights flat": (InputError, "topk_weights", lambda call: dict(topk_weights=call["topk_weights"].view(-1))),
    "routing weights apart": (InputError, "topk_weights", lambda call: dict(topk_weights=strided(call["topk_weights"]))),
    "routing weights elsewhere": (InputError, "topk_weights", lambda call: dict(topk_weights=other_place(call["topk_weights"]))),
    "out float32": (ChordError, "out", lambda call: dict(out=call["out"].float())),
    "out too short": (InputError, "out", lambda call: dict(out=call["out"][:-1])),
    "out with rows apart": (InputError, "out", lambda call: dict(out=strided(call["out"]))),
    "out off alignment": (InputError, "out", lambda call: dict(out=moved(call["out"]))),
    "out elsewhere": (InputError, "out", lambda call: dict(out=other_place(call["out"]))),
}


def bad_layers(call: Call) -> dict[str, Callable[[], object]]:
    """Layers and shared experts that do not fit."""
    weights, down = call.weights, call.weights.down
    ids = torch.arange(EXPERTS, dtype=torch.int32, device=call.x.device)
    narrow, wide = (lambda x: x[:, :32].contiguous()), (lambda x: x.float())
    return {
        "down elsewhere": lambda: replace(call, weights=MoEWeights(weights.gate_up, replace(down, data=other_place(down.data)))).layer(),
        "gate/up off alignment": lambda: off_alignment(call, "gate_up").result(),
        "down off alignment": lambda: off_alignment(call, "down").result(),
        "a shared expert that wants a gradient": lambda: replace(call, shared=torch.nn.Linear(HIDDEN, HIDDEN).to(call.x)).result(),
        "another layer's down": lambda: replace(call, weights=MoEWeights(weights.gate_up, weights.gate_up)).layer(),
        "a map elsewhere": lambda: replace(call, expert_map=other_place(ids)).layer(),
        "a map of int64": lambda: replace(call, expert_map=ids.long()).layer(),
        "a map in two dimensions": lambda: replace(call, expert_map=ids[None]).layer(),
        "a shared result too narrow": lambda: replace(call, shared=narrow).result(),
        "a shared result of float32": lambda: replace(call, shared=wide).result(),
        "a shared result off alignment": lambda: replace(call, shared=moved).result(),
    }
