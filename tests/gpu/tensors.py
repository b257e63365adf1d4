"""Tensors of GPU tests: between fences and poison, off alignment, and the packed weights that tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache

import torch

import chord_jit
from chord_jit import PackedW4A16
from chord_jit.formats.w4a16 import allocate
from chord_jit.formats.w4a16_layout import CODE_BYTES

#: Elements before and after every activation and output: NaN there, and untouched afterwards.
FENCE = 8192
#: A NaN that no arithmetic makes.
POISON = 0x7FA5


def bits(out: torch.Tensor) -> torch.Tensor:
    return out.view(torch.int16)


def poisoned(*shape: int, where: torch.device) -> torch.Tensor:
    """BF16 that no arithmetic makes, so that an unwritten element shows."""
    out = torch.empty(*shape, dtype=torch.bfloat16, device=where)
    bits(out).fill_(POISON)
    return out


def generator_of(where: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(where).manual_seed(seed)


# -- memory -------------------------------------------------------------------------------------------------------------
def fenced(x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x`` with NaN before its first and behind its last element."""
    buffer = torch.full((x.numel() + 2 * FENCE,), float("nan"), dtype=x.dtype, device=x.device)
    inside = buffer[FENCE : FENCE + x.numel()].view(x.shape)
    return inside.copy_(x)


def fenced_out(rows: int, columns: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned buffer, and the output inside of it."""
    buffer = torch.full((rows * columns + 2 * FENCE,), POISON, dtype=torch.int16, device=where).view(torch.bfloat16)
    return buffer, buffer[FENCE : FENCE + rows * columns].view(rows, columns)


def assert_fences(buffer: torch.Tensor) -> None:
    """Nothing was written around the output of ``fenced_out``."""
    for name, fence in (("before", bits(buffer)[:FENCE]), ("behind", bits(buffer)[-FENCE:])):
        written = int((fence != POISON).sum())
        assert written == 0, f"wrote {written} elements outside of out, {name} it"


def fenced_result(call: Callable[[torch.Tensor], torch.Tensor], columns: int, owned: torch.Tensor) -> torch.Tensor:
    """What ``call(out)`` returns for a poisoned ``out``: what lies around it must not change, nor the rows not in ``owned`` bool [rows]."""
    buffer, out = fenced_out(len(owned), columns, owned.device)
    assert call(out) is out
    assert_fences(buffer)
    wrong = ((bits(out) != POISON).any(dim=1) & ~owned).nonzero()
    assert len(wrong) == 0, f"wrote {len(wrong)} rows that are nobody's, first row {wrong[0].tolist()} of {len(owned)}"
    return out


def moved(tensor: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """An equal tensor, contiguous, ``elements`` past an aligned address."""
    buffer = torch.empty(tensor.numel() + 64, dtype=tensor.dtype, device=tensor.device)
    return buffer[elements : elements + tensor.numel()].view(tensor.shape).copy_(tensor)


def held_on(where: torch.device, given: object) -> object:
    """A tensor, or a dataclass with all its tensors, on ``where``: each in memory of its own size, without fences."""
    if isinstance(given, torch.Tensor):
        return given.to(where)
    if not is_dataclass(given):
        return given
    return replace(given, **{field.name: held_on(where, getattr(given, field.name)) for field in fields(given) if field.init})


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """An equal tensor whose rows lie apart."""
    wide = torch.empty(len(tensor), tensor.shape[1] + 8, dtype=tensor.dtype, device=tensor.device)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


# -- weights ------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=None)
def weight_of(experts: int, n: int, k: int, interleaved: bool, where: torch.device) -> PackedW4A16:
    """A packed weight with all 16 codes and scales of both signs, shared by the tests of this shape."""
    codes, scale = codes_of(experts, n, k, where)
    return chord_jit.pack_w4a16(codes, scale, interleave=interleaved)


def codes_of(experts: int, n: int, k: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = generator_of(where, experts * 1000003 + n * 1009 + k)
    codes = torch.randint(0, 16, (experts, n, k), dtype=torch.uint8, generator=generator, device=where)
    scale = torch.rand(experts, n, k // 32, generator=generator, device=where).add_(0.5).mul_(0.02)
    scale *= torch.randint(0, 2, scale.shape, generator=generator, device=where) * 2 - 1
    return codes, scale.bfloat16()


def integer_weight(experts: int, n: int, k: int, interleaved: bool, generator: torch.Generator) -> PackedW4A16:
    """A packed weight whose scales are 1/4 .. 2 of both signs: with ``integers`` sums are exact in FP32, in any order."""
    codes, scale = codes_of(experts, n, k, generator.device)
    power = torch.randint(-2, 2, scale.shape, generator=generator, device=generator.device)
    return chord_jit.pack_w4a16(codes, torch.exp2(power).mul(scale.sign()).bfloat16(), interleave=interleaved)


def integers(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """BF16 [rows, k] of -4 .. 4."""
    return torch.randint(-4, 5, (rows, k), generator=generator, device=generator.device).bfloat16()


def random_bytes(experts: int, n: int, k: int, where: torch.device, seed: int) -> PackedW4A16:
    """A weight made of random packed bytes: 6.3 GB in milliseconds. N and K must need no padding."""
    generator = generator_of(where, seed)
    packed = allocate(experts, n, k, False, where)
    packed.data.random_(0, 256, generator=generator)
    scales = packed.data[..., CODE_BYTES:].view(torch.bfloat16)
    for expert in range(experts):
        scales[expert] = torch.rand(scales.shape[1:], generator=generator, device=where).add_(0.5).mul_(0.02).bfloat16()
    return packed
