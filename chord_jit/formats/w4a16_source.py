"""What a caller hands over to be packed: its checks, and rows of it on demand, whichever of the two forms it has."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.w4a16_layout import GROUP

#: The operation, as errors name it.
ASKED = "pack a W4A16 weight"
#: Same bits, read as a signed type that every torch operation knows; a value too large turns negative: still refused.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_CODE_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *_SIGNED)


@dataclass(frozen=True)
class Source:
    """One checked matrix per expert: codes [E, N, K] or words int32 [E, N, K/8], and BF16 scales [E, N, K/32]."""

    weight: torch.Tensor
    scale: torch.Tensor

    @property
    def experts(self) -> int:
        return self.scale.shape[0]

    @property
    def n(self) -> int:
        return self.scale.shape[1]

    @property
    def k(self) -> int:
        return self.scale.shape[2] * GROUP

    @property
    def is_words(self) -> bool:
        """Whether the codes lie eight to a word: told by the weight's last dimension."""
        return self.weight.shape[2] != self.k

    def rows(self, start: int, stop: int) -> Source:
        """The same experts, rows ``start`` to ``stop`` only; no copy."""
        return Source(self.weight[:, start:stop], self.scale[:, start:stop])

    def put(self, expert: int, words: torch.Tensor, scales: torch.Tensor) -> None:
        """Copies one expert's rows into ``words`` int32 [N, K/8] and BF16 bits ``scales`` int16 [N, K/32]."""
        scales.copy_(self.scale[expert].view(torch.int16))
        codes = self.weight[expert]
        if self.is_words:
            words.copy_(codes)
            return
        pairs = words.view(torch.uint8)
        pairs.copy_(codes[:, 1::2]).bitwise_left_shift_(4).bitwise_or_(codes[:, 0::2].to(torch.uint8))


def read(weight: torch.Tensor, scale: torch.Tensor, name: str = "weight") -> Source:
    """Checks everything about one matrix, values included, without a copy of it.

    Raises ``InputTypeError`` for types and dtypes, ``InputError`` for shapes, devices and values.
    """
    for label, tensor in ((name, weight), (f"{name}'s scale", scale)):
        if not isinstance(tensor, torch.Tensor):
            raise InputTypeError(ASKED, f"{label} must be a tensor", {"type": type(tensor).__name__}, "pass a torch tensor")
    if weight.dtype not in _CODE_TYPES:
        raise InputTypeError(ASKED, f"{name} must hold integers", {"dtype": weight.dtype}, "pass codes 0..15 or int32 weight_packed")
    if scale.dtype != torch.bfloat16:
        raise InputTypeError(ASKED, f"{name}'s scale must be bfloat16", {"dtype": scale.dtype}, "convert it with .to(torch.bfloat16)")
    _check_shapes(weight, scale, name)
    if weight.device != scale.device or weight.device.type not in ("cpu", "cuda"):
        raise InputError(
            ASKED, f"{name} and its scale must lie on one CPU or CUDA device", {"weight": weight.device, "scale": scale.device},
            "move both to one device",
        )
    source = Source(weight.view(_SIGNED.get(weight.dtype, weight.dtype)), scale.detach())
    _check_values(source, name)
    return source


def _check_shapes(weight: torch.Tensor, scale: torch.Tensor, name: str) -> None:
    values = {name: tuple(weight.shape), "scale": tuple(scale.shape), "dtype": weight.dtype}
    if weight.dim() != 3 or scale.dim() != 3 or 0 in scale.shape:
        raise InputError(
            ASKED, f"{name} and its scale must be [experts, N, ...], none of them empty", values, "add the expert dimension: unsqueeze(0)"
        )
    k = scale.shape[2] * GROUP
    last = {k, k // 8} if weight.dtype == torch.int32 else {k}
    if weight.shape[:2] != scale.shape[:2] or weight.shape[2] not in last:
        raise InputError(
            ASKED, f"{name} must be codes [E, N, K] or int32 words [E, N, K/8], its scale [E, N, K/32], K a multiple of 32",
            {**values, "K by the scale": k}, "pass one scale for each 32 consecutive k of each row",
        )


def _check_values(source: Source, name: str) -> None:
    """One read-back for all experts: counts stay on the device until the end."""
    experts = range(source.experts)
    infinite = torch.stack([torch.isfinite(source.scale[expert]).logical_not_().sum() for expert in experts]).tolist()
    if any(infinite):
        expert = next(expert for expert in experts if infinite[expert])
        index = _first(torch.isfinite(source.scale[expert]).logical_not_())
        raise InputError(
            ASKED, f"{name}'s scales must be finite",
            {"NaN or inf": sum(infinite), "first at [expert, n, group]": [expert, *index], "value": source.scale[expert, *index].item()},
            "repair the checkpoint: such a scale poisons whole rows",
        )
    if source.is_words:
        return  # every nibble is a code
    extremes = torch.stack([torch.stack(source.weight[expert].aminmax()) for expert in experts]).tolist()
    wrong = [expert for expert, (least, most) in enumerate(extremes) if least < 0 or most > 15]
    if wrong:
        count = sum(int(_outside(source.weight[expert]).sum()) for expert in wrong)
        index = _first(_outside(source.weight[wrong[0]]))
        raise InputError(
            ASKED, f"{name}'s codes must lie in 0..15",
            {"outside": count, "first at [expert, n, k]": [wrong[0], *index], "value": source.weight[wrong[0], *index].item()},
            "pass unsigned codes: the signed value plus 8",
        )


def _outside(codes: torch.Tensor) -> torch.Tensor:
    return (codes < 0).logical_or_(codes > 15)


def _first(mask: torch.Tensor) -> list[int]:
    position = int(mask.flatten().view(torch.uint8).argmax())
    return [position // mask.shape[1], position % mask.shape[1]]
