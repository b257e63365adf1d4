"""What an indexed kernel is told about routing, and every rule that metadata alone can prove."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.routing.checks import check_buffer, check_int, check_tensor

#: Slots of a block. Kernels count tiles, those of empty blocks too, and look 63 blocks ahead, in 32 bits.
MAX_BLOCK = 4096
_BUFFERS = ("sorted_ids", "expert_ids", "num_tokens_padded")


@dataclass(frozen=True, eq=False, repr=False)
class IndexedRouting:
    """Routed ids in blocks of ``block_m``, each block of one expert. Buffers are borrowed, never copied.

    ``sorted_ids``: int32 [capacity], contiguous. Block ``b`` is the slots ``[b * block_m, (b + 1) * block_m)``: first
    its valid ids, which lie in ``[0, routed_rows)``, then sentinels, which are ``>= routed_rows``. No valid id appears
    twice. Slots of a block past ``capacity`` count as sentinels. Id ``i`` reads row ``i // top_k`` of the activations
    and writes row ``i`` of the output.
    ``expert_ids``: int32 [at least ceil(capacity / block_m)], contiguous: the expert of each block, in ``[0, experts)``.
    ``num_tokens_padded``: int32, 0-D or [1]: the slots in use, a multiple of ``block_m``. What lies past it in both
    buffers may be read ahead and is never used.
    ``top_k``: routed ids per activation row; 1 for the down projection. ``block_m``: a multiple of 8 in 8 .. 4096.
    ``routed_rows``: activation rows x ``top_k``. ``experts``: experts of the weight (local ones under expert
    parallelism). ``global_experts``: experts of the whole model, at least ``experts``; 0, the default, stands for
    ``experts``. It only steers the choice of a schedule.

    Construction reads metadata alone: no synchronisation, legal under CUDA graph capture. Raises ``InputTypeError``
    for a type or dtype, ``InputError`` for everything else. The verdict stays with the object, so the buffers must
    keep their storage; their values may be rewritten between launches.
    """

    sorted_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_tokens_padded: torch.Tensor
    top_k: int
    block_m: int
    routed_rows: int
    experts: int
    global_experts: int = 0
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        check_sizes("describe indexed routing", self.block_m, self.experts, self.top_k, self.routed_rows, self.global_experts)
        for name in ("sorted_ids", "expert_ids"):
            check_buffer("describe indexed routing", name, getattr(self, name))
        _check_count(self.num_tokens_padded)
        device = self.sorted_ids.device
        if self.expert_ids.device != device or self.num_tokens_padded.device != device:
            raise InputError(
                "describe indexed routing", "the three buffers must lie on one device",
                {name: getattr(self, name).device for name in _BUFFERS}, "move them to the device of the activations",
            )
        if self.expert_ids.numel() < self.max_blocks:
            raise InputError(
                "describe indexed routing", "expert_ids must name an expert for every block that sorted_ids can hold",
                {"expert_ids": self.expert_ids.numel(), "blocks": self.max_blocks, "block_m": self.block_m},
                "give ceil(capacity / block_m) expert ids, or a view of the sorted_ids that they cover",
            )
        object.__setattr__(self, "device", device)
        if self.global_experts == 0:
            object.__setattr__(self, "global_experts", self.experts)

    @classmethod
    def trusted(
        cls, sorted_ids: torch.Tensor, expert_ids: torch.Tensor, num_tokens_padded: torch.Tensor, top_k: int, block_m: int,
        routed_rows: int, experts: int, global_experts: int,
    ) -> IndexedRouting:
        """The same without a check, for a builder that checked its sizes and made the buffers: what cannot break costs a call nothing."""
        made = object.__new__(cls)
        made.__dict__.update(
            sorted_ids=sorted_ids, expert_ids=expert_ids, num_tokens_padded=num_tokens_padded, top_k=top_k, block_m=block_m,
            routed_rows=routed_rows, experts=experts, global_experts=global_experts, device=sorted_ids.device,
        )
        return made

    @cached_property
    def place(self) -> tuple[int, int, int, int, int, int]:
        """Index of the device, addresses of the buffers, capacity and ``max_blocks``, as a launch takes them.

        Read at the first launch, since tensors that are being compiled have no address; then kept, as warm calls have no time.
        """
        buffers = (getattr(self, name).data_ptr() for name in _BUFFERS)
        return (self.sorted_ids.get_device(), *buffers, self.sorted_ids.numel(), self.max_blocks)

    @property
    def max_blocks(self) -> int:
        """Blocks that ``sorted_ids`` can hold, the last one perhaps cut short: a bound that the host knows."""
        return -(-self.sorted_ids.numel() // self.block_m)

    def for_down(self) -> IndexedRouting:
        """The same blocks over activations that hold one row per routed id: ``top_k`` becomes 1. The verdict on the rest stays."""
        other = object.__new__(IndexedRouting)
        other.__dict__.update({**self.__dict__, "top_k": 1})
        return other

    def __getstate__(self) -> dict[str, object]:
        """Without ``place``: the buffers of a deep copy, or of another process, lie elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name != "place"}

    def __repr__(self) -> str:
        return (
            f"IndexedRouting(routed_rows={self.routed_rows}, top_k={self.top_k}, block_m={self.block_m}, "
            f"experts={self.experts}, capacity={self.sorted_ids.numel()}, device={self.device})"
        )


def check_trusted(routing: IndexedRouting, *, rows: int, experts: int, device: torch.device) -> None:
    """Check that ``routing`` fits one call: ``rows`` activation rows, ``experts`` experts of the weight, their device.

    Metadata alone, well under a microsecond: the buffers were checked when ``routing`` was made. Whether their values
    keep the contract is the caller's word; ``check_values`` proves it. Raises ``InputTypeError`` or ``InputError``.
    """
    if not isinstance(routing, IndexedRouting):
        raise InputTypeError(
            "route rows to experts", "routing must be an IndexedRouting", {"type": type(routing).__name__},
            "build it with align_blocks, or make an IndexedRouting of your own buffers",
        )
    if routing.routed_rows != rows * routing.top_k:
        raise InputError(
            "route rows to experts", "routed_rows must be the activation rows x top_k",
            {"routed_rows": routing.routed_rows, "rows": rows, "top_k": routing.top_k},
            "pass the activations that were routed; the down projection takes routing.for_down()",
        )
    if routing.experts != experts:
        raise InputError(
            "route rows to experts", "routing and weight must count the same experts",
            {"routing": routing.experts, "weight": experts}, "route to the local experts of this weight (expert_map=)",
        )
    if routing.device != device:
        raise InputError(
            "route rows to experts", "routing and activations must lie on one device",
            {"routing": routing.device, "activations": device}, "move the routing to the device of the activations",
        )


def check_sizes(asked: str, block_m: int, experts: int, top_k: int, routed_rows: int, global_experts: int = 0) -> None:
    """Check the host's numbers. Raises ``InputTypeError`` for what is no int, ``InputError`` for a value out of range."""
    numbers = (
        ("block_m", block_m, 8), ("experts", experts, 1), ("top_k", top_k, 1), ("routed_rows", routed_rows, 0),
        ("global_experts", global_experts, 0),
    )  # fmt: skip
    for name, value, least in numbers:
        check_int(asked, name, value, least)
    if block_m % 8 or block_m > MAX_BLOCK:
        raise InputError(
            asked, f"block_m must be a multiple of 8, {MAX_BLOCK} at most", {"block_m": block_m}, "take the block_m that block_m_for chose"
        )
    if global_experts and global_experts < experts:
        raise InputError(
            asked, "global_experts must count the local ones too", {"global_experts": global_experts, "experts": experts},
            "pass the experts of the whole model, or leave it out",
        )
    if routed_rows % top_k:
        raise InputError(
            asked, "routed_rows must be the activation rows x top_k", {"routed_rows": routed_rows, "top_k": top_k},
            "pass topk_ids.numel()",
        )


def _check_count(padded: torch.Tensor) -> None:
    asked, name = "describe indexed routing", "num_tokens_padded"
    check_tensor(asked, name, padded, torch.int32)
    if padded.dim() > 1 or padded.numel() != 1:
        raise InputError(asked, f"{name} must be 0-D or [1]", {"shape": list(padded.shape)}, "pass the one count of padded slots")
