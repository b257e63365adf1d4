"""The grouped layouts by metadata alone: what fits is not refused, and each rule that breaks is named."""

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.routing.grouped import blocks_fit, check_blocks, check_counts, check_offsets, counts_fit, offsets_fit
from tests.unit.families.fake_gpu import on_gpu

EXPERTS, ROWS = 6, 384
CPU = torch.device("cpu")
INDEX = -1  # what get_device() says of a CPU tensor


def ints(*shape):
    return torch.zeros(*shape, dtype=torch.int32)


def longs(*shape):
    return torch.zeros(*shape, dtype=torch.int64)


# layout: the good tensor, its test and its check, both as functions of tensor and rows
LAYOUTS = {
    "m_indices": (
        ints(ROWS), lambda tensor, rows=ROWS: blocks_fit(tensor, rows, INDEX),
        lambda tensor, rows=ROWS: check_blocks("group rows", tensor, rows, CPU),
    ),
    "offsets": (
        longs(EXPERTS + 1), lambda tensor, rows=ROWS: offsets_fit(tensor, EXPERTS, INDEX),
        lambda tensor, rows=ROWS: check_offsets("group rows", tensor, EXPERTS, CPU),
    ),
    "masked_m": (
        ints(EXPERTS), lambda tensor, rows=ROWS: counts_fit(tensor, rows, EXPERTS, INDEX),
        lambda tensor, rows=ROWS: check_counts("group rows", tensor, rows, EXPERTS, CPU),
    ),
}  # fmt: skip

ANY = {
    "a list": (InputTypeError, "must be a tensor.*\n.*type=list", lambda good: good.tolist()),
    "None": (InputTypeError, "must be a tensor.*\n.*type=NoneType", lambda good: None),
    "floats": (InputTypeError, "must be int.*\n.*dtype=torch.float32", lambda good: good.float()),
    "the other integer": (InputTypeError, "must be int", lambda good: good.to({torch.int32: torch.int64}.get(good.dtype, torch.int32))),
    "two dimensions": (InputError, "must be 1-D", lambda good: good[None]),
    "a scalar": (InputError, "must be 1-D", lambda good: good[0]),
    "strided": (InputError, "must be contiguous", lambda good: torch.stack((good, good), 1)[:, 0]),
    "one too few": (InputError, "must", lambda good: good[1:].clone()),
    "one too many": (InputError, "must", lambda good: torch.cat((good, good[:1]))),
    "none": (InputError, "must", lambda good: good[:0].clone()),
    "elsewhere": (InputError, "lie on one device.*\n.*=cuda:0", on_gpu),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_good_layout_fits_and_is_not_refused(name):
    good, fits, check = LAYOUTS[name]
    assert fits(good)
    check(good)


@pytest.mark.parametrize("error, says, change", ANY.values(), ids=ANY)
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_rule_is_named(name, error, says, change):
    good, fits, check = LAYOUTS[name]
    bad = change(good)
    assert not fits(bad)
    with pytest.raises(error, match=says) as caught:
        check(bad)
    assert name in caught.value.rule and caught.value.asked == "group rows" and caught.value.values and caught.value.remedy


@pytest.mark.parametrize("rows", [1, 127, 129, ROWS - 1])
def test_blocks_of_128_rows_are_whole(rows):
    assert not blocks_fit(ints(rows), rows, INDEX)
    with pytest.raises(InputError, match=f"multiple of 128.*\n.*rows={rows}") as caught:
        check_blocks("group rows", ints(rows), rows, CPU)
    assert "offsets=" in caught.value.remedy


@pytest.mark.parametrize("rows", [1, 7, ROWS + 1])
def test_slots_are_shared_equally(rows):
    assert not counts_fit(ints(EXPERTS), rows, EXPERTS, INDEX)
    with pytest.raises(InputError, match=f"equally many rows.*\n.*rows={rows}, experts=6"):
        check_counts("group rows", ints(EXPERTS), rows, EXPERTS, CPU)


def test_no_rows_are_rows_too():
    assert blocks_fit(ints(0), 0, INDEX) and counts_fit(ints(EXPERTS), 0, EXPERTS, INDEX)
    check_blocks("group rows", ints(0), 0, CPU)
    check_counts("group rows", ints(EXPERTS), 0, EXPERTS, CPU)
