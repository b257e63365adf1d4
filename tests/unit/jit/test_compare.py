"""Keys side by side, and an entry's key against what this installation would ask for."""

from __future__ import annotations

import pytest

from chord_jit.errors import InputError
from chord_jit.jit import compare, schema
from chord_jit.jit.compare import Difference
from chord_jit.jit.key import digest_of, key_of
from chord_jit.jit.spec import KernelSpec
from tests.toy.family import spec

SPEC = KernelSpec("toy_add", (("kThreads", 256), ("kScale", 2), ("kOn", True), ("kOff", False), ("kText", "a::B<1, 2>{}: x = 3")), "sm_90a")


def test_the_fields_of_a_key_give_its_kernel_back(place):
    assert compare.spec_of(key_of(SPEC).fields) == SPEC
    assert compare.asked_now(key_of(SPEC).fields) == key_of(SPEC)


#: change of the fields, differences found
CHANGES = (
    ({}, []),
    ({"arch": "sm_100a"}, [Difference("arch", "", "sm_90a", "sm_100a")]),
    ({"new": "x"}, [Difference("new", "", None, "x")]),
    ({"config": "kThreads: int = 256\nkScale: int = 3"}, [Difference("config", "kScale", "int = 2", "int = 3")]),
    ({"config": "kScale: int = 2\nkThreads: int = 256"}, [
        Difference("config", "order", "kThreads: int = 256\nkScale: int = 2", "kScale: int = 2\nkThreads: int = 256")
    ]),
    ({"flags": "-a\n-c"}, [Difference("flags", "-b", "present", None), Difference("flags", "-c", None, "present")]),
    ({"headers": "chord/a.cuh 11"}, [Difference("headers", "chord/b.cuh", "22", None)]),
)  # fmt: skip


@pytest.mark.parametrize("change, expected", CHANGES)
def test_differences(change, expected):
    fields = {
        "arch": "sm_90a", "config": "kThreads: int = 256\nkScale: int = 2", "flags": "-a\n-b", "headers": "chord/a.cuh 11\nchord/b.cuh 22",
    }  # fmt: skip
    other = {**fields, **change}
    found = compare.differences(fields, other)
    assert found == expected and (not found) == (digest_of(fields) == digest_of(other))


def test_what_this_installation_does_not_know(place):
    fields = key_of(spec()).fields
    for change in ({"arch": "sm_80"}, {"stem": "no_such_kernel"}, {"config": "kThreads = 3"}, {"config": "kThreads: int = x"}):
        assert compare.asked_now({**fields, **change}) is None
    assert compare.asked_now({}) is None
    with pytest.raises(InputError, match="known version"):
        compare.spec_of({"key version": "9"})


def test_another_version_of_the_key_is_one_difference(place, monkeypatch):
    fields = key_of(spec()).fields
    monkeypatch.setattr(schema, "KEY_VERSION", 7)
    assert compare.differences(fields, compare.asked_now(fields).fields) == [Difference("key version", "", "1", "7")]
