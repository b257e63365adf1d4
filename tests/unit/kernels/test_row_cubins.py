"""Row kernels for every target: no spills, wide accesses, parameters packed as the host packs them."""

from __future__ import annotations

import pytest

from chord_jit.rows import kernels
from tests.unit.kernels.checks import check
from tests.unit.rows.parameters import LAYOUTS
from tests.unit.schedules.device_asserts import compile_asserts, order_asserts

TARGETS = ("sm_90a", "sm_100a", "sm_103a")
#: What each kernel is made of: ids of one expert found by a match, the launch behind it let go; rows moved 16 bytes at a time; the
#: wait for the launch before.
MEANT = {
    "route_rows": ("MATCH.ANY", "SHFL.UP", "BAR.SYNC", "PREEXIT"),
    "move_rows": (r"LDG\.E\.128", r"STG\.E\.128"),
    "combine_rows": (r"LDG\.E\.128", r"STG\.E\.128", "ACQBULK"),
}


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("stem", kernels.ALL)
def test_a_kernel_is_what_was_meant(stem, arch, tmp_path):
    for kernel in kernels.ALL[stem]:
        check(kernel.spec(arch), tmp_path, MEANT[stem])


@pytest.mark.parametrize("stem", kernels.ALL)
def test_parameters_are_packed_as_the_kernel_reads_them(stem):
    pointers, numbers = LAYOUTS[stem]
    size = kernels.ALL[stem][0].params.size
    compile_asserts(stem, order_asserts(f"chord::{stem}::Params", pointers, numbers, size))


def test_the_host_knows_the_kernels_phases():
    from chord_jit.rows import route

    names = ("kWhole", "kCount", "kPlace")
    phases = (route._WHOLE, route._COUNT, route._PLACE)
    lines = [f"static_assert(int(chord::route_rows::Phase::{name}) == {value});" for name, value in zip(names, phases, strict=True)]
    compile_asserts("route_rows", lines)
