"""Descriptors of activations: what the driver is asked, what is remembered, and by what."""

import pytest
from cuda.bindings import driver

from chord_jit.errors import LaunchError
from chord_jit.jit import tensor_map

ADDRESS, ROWS, K, BOX = 0x7F00_0000_1230, 1000, 7168, 64
SUCCESS = driver.CUresult.CUDA_SUCCESS
CHANGES = [dict(address=ADDRESS + 16), dict(rows=ROWS + 1), dict(k=K + 32), dict(box_rows=BOX // 2)]


class FakeDriver:
    """A driver that makes every descriptor another one. ``asked``: the arguments of every call."""

    def __init__(self):
        self.status, self.asked = SUCCESS, []

    def __getattr__(self, name):
        return getattr(driver, name)

    def cuTensorMapEncodeTiled(self, *arguments):
        self.asked.append(arguments)
        found = driver.CUtensorMap()
        found.opaque = [driver.cuuint64_t(len(self.asked))] * 16
        return self.status, found if self.status == SUCCESS else None


@pytest.fixture
def fake(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(tensor_map, "driver", fake)
    tensor_map.rows_of.cache_clear()
    yield fake
    tensor_map.rows_of.cache_clear()


def describe(**changes) -> bytes:
    return tensor_map.rows_of(**{"address": ADDRESS, "rows": ROWS, "k": K, "box_rows": BOX, **changes})


def test_what_the_driver_is_asked(fake):
    assert describe() == (1).to_bytes(8, "little") * 16 and tensor_map.BYTES == 128
    ((kind, rank, address, sizes, strides, box, steps, interleave, swizzle, _, fill),) = fake.asked
    assert (kind.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, ADDRESS)
    assert [list(map(int, each)) for each in (sizes, strides, box, steps)] == [[K, ROWS], [2 * K], [64, BOX], [1, 1]]
    assert interleave.name.endswith("INTERLEAVE_NONE") and swizzle.name.endswith("SWIZZLE_128B")
    assert fill.name.endswith("OOB_FILL_NONE")  # zeros: K tails and rows past the end must not bring NaN


def test_equal_requests_are_asked_once(fake):
    assert len({describe() for _ in range(5)}) == len(fake.asked) == 1


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_v44_no_part_of_a_request_is_left_out_of_the_memory(fake, change):
    """A matrix of another shape at a known address has a descriptor of its own, and the first one's is not lost."""
    first, other = describe(), describe(**change)
    assert first != other and len(fake.asked) == 2
    assert (describe(), describe(**change)) == (first, other) and len(fake.asked) == 2


def test_v39_what_is_remembered_is_bounded(fake):
    assert tensor_map.rows_of.cache_info().maxsize <= 4096


def test_a_refusal_says_what_was_asked_and_is_not_remembered(fake):
    fake.status = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        describe(address=ADDRESS + 8)
    assert caught.value.values == {"status": "CUDA_ERROR_INVALID_VALUE", "rows": ROWS, "K": K, "box rows": BOX, "address % 16": 8}
    fake.status = SUCCESS
    assert describe(address=ADDRESS + 8) and len(fake.asked) == 2
