"""Good calls of each kind with all tensors on one device: through the API, through the op, and in FP64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from unittest.mock import patch

import torch

import chord_jit
from chord_jit import PackedW4A16, ops
from chord_jit.reference import grouped, indexed
from chord_jit.routing.grouped import blocks_of, offsets_of

EXPERTS, N, K, TOP_K = 4, 128, 64, 2
KINDS = ("indexed", "blocks", "offsets", "masked")
CPU = torch.device("cpu")
#: A NaN that no arithmetic makes.
POISON = 0x7FA5


@dataclass(frozen=True)
class Call:
    """``name``: of the API function and of the op. ``given``: the arguments behind ``x`` and ``weight``."""

    name: str
    x: torch.Tensor
    weight: PackedW4A16
    given: dict[str, object]

    @property
    def shape(self) -> tuple[int, int]:
        rows = self.given["routing"].routed_rows if self.name == "indexed" else self.x.shape[0]
        return rows, N // 2 if self.given.get("swiglu") else N

    def eager(self, **more) -> torch.Tensor:
        return getattr(chord_jit, self.name)(self.x, self.weight, **self.given, **more)

    def op_arguments(self) -> tuple:
        """What the API hands to the op while compiling."""
        options = dict(swiglu=False, topk_weights=None, offsets=None, m_indices=None, expected_rows=None, checked=False, out=None)
        wanted = {"indexed": ("topk_weights", "expected_rows"), "contiguous": ("m_indices", "offsets", "expected_rows"), "masked": ()}
        names = ("swiglu", "checked", "out", *wanted[self.name])
        with patch.object(ops, "_call", lambda name, given, out: (name, given)):
            name, arguments = getattr(ops, self.name)(self.x, self.weight, **{**{key: options[key] for key in names}, **self.given})
        assert name == self.name
        return arguments

    def op(self, suffix: str = "") -> torch._ops.OpOverload:
        return getattr(torch.ops.chord_jit, self.name + suffix).default

    def exact(self) -> torch.Tensor:
        """float64, NaN in rows that nobody names."""
        given = {name: value for name, value in self.given.items() if name != "expected_rows"}
        call = indexed.indexed if self.name == "indexed" else getattr(grouped, self.name)
        return call(self.x, self.weight, **given)

    def poisoned_out(self) -> torch.Tensor:
        return torch.full(self.shape, POISON, dtype=torch.int16, device=self.x.device).view(torch.bfloat16)


@lru_cache
def weight_of(where: torch.device = CPU, seed: int = 0) -> PackedW4A16:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (EXPERTS, N, K), dtype=torch.uint8, generator=generator)
    scale = (torch.rand(EXPERTS, N, K // 32, generator=generator) + 0.5).mul_(0.1).bfloat16()
    return chord_jit.pack_w4a16(codes.to(where), scale.to(where), interleave=True)


def make(kind: str, size: int, seed: int, where: torch.device = CPU, *, whole: bool = False, **options) -> Call:
    """A call of ``size`` tokens, or rows of the largest expert; ``whole``: no row is nobody's."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "indexed":
        ids = torch.rand(size, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].to(torch.int32)
        if not whole:
            ids[torch.rand(size, TOP_K, generator=generator) < 0.3] = -1
        rows, given = size, dict(routing=chord_jit.align_blocks(ids.to(where), 8, EXPERTS))
    else:
        counts = torch.randint(0, size + 1, (EXPERTS,), generator=generator)
        counts[0] = size
        if whole:
            counts = torch.full((EXPERTS,), -(-size // 128) * 128 if kind == "blocks" else size)
        if kind == "masked":
            rows, given = EXPERTS * size, dict(masked_m=counts.int().to(where), expected_m=size)
        elif kind == "offsets":
            rows, given = int(counts.sum()) + (0 if whole else 3), dict(offsets=offsets_of(counts.to(where)))
        else:
            blocks = blocks_of(counts.to(where))
            rows, given = blocks.numel(), dict(m_indices=blocks)
    x = torch.randn(rows, K, generator=generator).bfloat16().to(where)
    return Call("contiguous" if kind in ("blocks", "offsets") else kind, x, weight_of(where), {**given, **options})


def weights_for(size: int, seed: int, where: torch.device = CPU) -> torch.Tensor:
    """Routing weights of an indexed call of ``size`` tokens."""
    return torch.rand(size, TOP_K, generator=torch.Generator().manual_seed(seed)).to(where)


def assert_rounded(result: torch.Tensor, call: Call, others: int) -> None:
    """``result`` is the FP64 result rounded once; rows that nobody names hold the bits ``others``."""
    exact = call.exact()
    named = ~exact.isnan().any(1)
    assert result.dtype is torch.bfloat16 and tuple(result.shape) == call.shape
    assert torch.equal(result[named], exact[named].bfloat16())
    assert bool((result[~named].view(torch.int16) == others).all())
