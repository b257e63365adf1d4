"""One MoE layer's routed experts: one packed copy of the weights, one call from hidden states to combined output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.compiler import is_compiling

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.arguments import device_of
from chord_jit.formats.checkpoint import load_moe_layers
from chord_jit.formats.model_config import read_model_shape
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.share import Share
from chord_jit.formats.w4a16_layout import require_layout, require_mode
from chord_jit.routing.checks import check_int
from chord_jit.routing.indexed.align import check_map
from chord_jit.rows import pipeline

_ASKED = "make a MoE layer"


class MoELayer(torch.nn.Module):
    """``layer(x, topk_ids, topk_weights)``: each token's weighted sum over its experts, ``down(silu(gate(x)) * up(x))``.

    ``weights``: gate/up packed with ``interleave=True`` and down, on one device; the layer holds them as buffers, and no other
    copy. ``top_k``: routed ids of a token. ``expert_map``: int32 [experts of the model], the local expert of each or -1, for a
    rank of expert parallelism; without it ids name local experts. ``shared``: the shared expert, a module from x to
    BF16 [tokens, hidden], contiguous and 16-byte aligned, which is added before the sum is rounded.

    A call groups the ids, multiplies by gate/up with SwiGLU fused, by down, and combines, choosing way and schedules from the
    rows that an expert can expect. Its rows in between take ``2 * top_k * (hidden + neurons)`` bytes a token from torch's
    allocator, ``workspace_bytes`` at most: more tokens are taken in slices of as many as fit, one at least. Besides, 4 bytes for each
    id and each slot of a block, and 512 for each expert. For inference: no gradient is defined.

    Raises ``InputError`` / ``InputTypeError`` for weights that do not belong together.
    """

    def __init__(
        self, weights: MoEWeights, *, top_k: int, expert_map: torch.Tensor | None = None, shared: torch.nn.Module | None = None,
        workspace_bytes: int = pipeline.WORKSPACE_BYTES,
    ):
        super().__init__()
        check_int(_ASKED, "top_k", top_k, 1)
        check_int(_ASKED, "workspace_bytes", workspace_bytes, 1, bits=64)
        _check_weights(weights)
        if expert_map is not None:
            check_map(_ASKED, expert_map, "weights", weights.gate_up.device)
        self.top_k, self.workspace_bytes, self.shared = top_k, workspace_bytes, shared
        self._weights = weights
        self.register_buffer("gate_up", weights.gate_up.data)
        self.register_buffer("down", weights.down.data)
        self.register_buffer("expert_map", expert_map)

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, layer: int, *, ep: int = 1, tp: int = 1, rank: int = 0, device: torch.device | str | None = None,
        shared: torch.nn.Module | None = None, workspace_bytes: int = pipeline.WORKSPACE_BYTES,
    ) -> MoELayer:
        """One layer of a compressed-tensors INT4 group-32 checkpoint, one rank's share, as ``load_moe_layers`` reads it.

        ``device``: default the current GPU. Under expert parallelism ids are those of the model. Under tensor parallelism the
        results of all ranks must be added. Raises as ``load_moe_layers``.
        """
        where, shape = device_of(device), read_model_shape(path)
        weights = load_moe_layers(path, layers=[layer], ep=ep, tp=tp, rank=rank, device=where)[layer]
        expert_map = None
        if ep > 1:
            own = Share(ep, tp, rank).experts(shape)
            expert_map = torch.full((shape.experts,), -1, dtype=torch.int32)
            expert_map[own.start : own.stop] = torch.arange(len(own), dtype=torch.int32)
            expert_map = expert_map.to(where)
        return cls(weights, top_k=shape.top_k, expert_map=expert_map, shared=shared, workspace_bytes=workspace_bytes)

    @property
    def weights(self) -> MoEWeights:
        """The packed weights: objects over the buffers, made again when a move or a load has replaced those."""
        held, (gate_up, down) = self._weights, (self.gate_up, self.down)
        same = held.gate_up.data is gate_up and held.down.data is down
        # A host may put another storage under the same tensor (``data.data = other``); while tracing, tensors have no address.
        if not same or not (is_compiling() or (held.gate_up.place[1], held.down.place[1]) == (gate_up.data_ptr(), down.data_ptr())):
            held = self._weights = MoEWeights(replace(held.gate_up, data=gate_up), replace(held.down, data=down))
        return held

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> MoELayer:
        """What every move goes through: the bytes at the old place are given back now, not at the next call."""
        super()._apply(fn, recurse)
        self._weights = self.weights
        return self

    def forward(
        self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x``: BF16 [tokens, hidden]. ``topk_ids``: int32 or int64 [tokens, top_k]; ``topk_weights``: FP32 of the same shape. All
        contiguous, ``x`` and ``out`` 16-byte aligned, on the layer's device. Returns BF16 [tokens, hidden], in ``out`` if given, which
        may be ``x`` itself and else lies apart from all that is read.

        An id of no local expert, -1 and any out of range, adds nothing; an expert that a token names twice counts twice; a token
        without a local expert is the shared expert's result, or zero. Sums are FP32, in the order of a token's ids; the same inputs
        give the same bits. No value is read by the host; runs on the current stream; can be captured once a call of as many tokens,
        or ``warm_up``, went before. ``torch.compile`` takes the call whole.

        Raises ``InputError`` / ``InputTypeError`` before any launch, for a gradient that is wanted too (a compiled or exported call
        gives none), and ``CaptureError`` for a cold call inside CUDA graph capture.
        """
        addend = None if self.shared is None else self.shared(x)
        if is_compiling():
            from chord_jit import ops

            return ops.moe(x, self.weights, topk_ids, topk_weights, self.top_k, self.expert_map, addend, self.workspace_bytes, out)
        if torch.is_grad_enabled():
            _refuse_gradients(x=x, topk_weights=topk_weights, shared=addend)
        return pipeline.run(
            x, self.weights, topk_ids, topk_weights, self.top_k, expert_map=self.expert_map, addend=addend,
            workspace_bytes=self.workspace_bytes, out=out,
        )  # fmt: skip

    def extra_repr(self) -> str:
        gate_up = self._weights.gate_up
        return f"hidden={gate_up.k}, neurons={self._weights.down.k}, experts={gate_up.experts}, top_k={self.top_k}"


def _refuse_gradients(**given: object) -> None:
    wanted = [name for name, one in given.items() if isinstance(one, torch.Tensor) and one.requires_grad]
    if wanted:
        raise InputError(
            "run a MoE layer", "packed experts have no gradient", {"requires_grad": wanted},
            "call it under torch.no_grad() or torch.inference_mode()",
        )


def _check_weights(weights: MoEWeights) -> None:
    if not isinstance(weights, MoEWeights):
        given = {"got": type(weights).__name__}
        raise InputTypeError(_ASKED, "weights must be MoEWeights", given, "use load_moe_layers, or MoEWeights(gate_up, down)")
    gate_up, down = weights.gate_up, weights.down
    for packed in (gate_up, down):
        require_layout(packed)
        require_mode(packed, "indexed")
    if not gate_up.interleaved or down.interleaved:
        raise InputError(
            _ASKED, "gate and up must be packed interleaved, down must not", {"gate_up": gate_up.interleaved, "down": down.interleaved},
            "pack gate and up with interleave=True",
        )
    fits = (gate_up.k, gate_up.n // 2, gate_up.experts, gate_up.device) == (down.n, down.k, down.experts, down.device)
    if not fits:
        raise InputError(
            _ASKED, "gate/up must be [E, 2 * neurons, hidden] and down [E, hidden, neurons], on one device",
            {name: [one.experts, one.n, one.k, str(one.device)] for name, one in (("gate_up", gate_up), ("down", down))},
            "pass both weights of one layer",
        )
