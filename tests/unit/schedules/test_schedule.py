"""Schedules as text."""

from __future__ import annotations

import pytest

from chord_jit.errors import InputError
from chord_jit.schedules.schedule import Schedule, parse


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("w4a16_mma 16x128x512 s3", Schedule("w4a16_mma", 16, 128, 512, 3)),
        ("  w4a16_mma  8x256x256 s2 cn1 ctas1 ", Schedule("w4a16_mma", 8, 256, 256, 2)),
        ("w4a16_mma 8x128x256 s4 cm2 cn3 ctas2", Schedule("w4a16_mma", 8, 128, 256, 4, cm=2, cn=3, ctas=2)),
    ],
)
def test_a_schedule_is_read_as_it_prints(text, schedule):
    assert parse(text) == schedule
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["", "w4a16_mma", "w4a16_mma 16x128 s3", "w4a16_mma 16x128x512", "w4a16_mma 8x8x8 s3 warp4", "8x8x8 s3"])
def test_other_text_is_refused(text):
    with pytest.raises(InputError, match="must look like"):
        parse(text)
