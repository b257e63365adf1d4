"""From spec to source."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError

from chord_jit import assets
from chord_jit.errors import InputError, InputTypeError
from chord_jit.jit.key import key_of
from chord_jit.jit.render import config_struct, render
from chord_jit.jit.spec import KernelSpec
from tests.toy.family import spec

#: value, the declaration that it becomes
FIELDS = (
    (True, "bool kX = true;"),
    (False, "bool kX = false;"),
    (0, "int kX = 0;"),
    (-5, "int kX = -5;"),
    (2**31 - 1, "int kX = 2147483647;"),
    (-(2**31), "int kX = -2147483648;"),
    (2**31, "long long kX = 2147483648LL;"),
    (-(2**31) - 1, "long long kX = -2147483649LL;"),
    (2**63 - 1, "long long kX = 9223372036854775807LL;"),
    ("chord::Dequant::kMagic", "auto kX = chord::Dequant::kMagic;"),
)


@pytest.mark.parametrize("value, declaration", FIELDS, ids=[repr(value) for value, _ in FIELDS])
def test_field(value, declaration):
    text = config_struct(KernelSpec("toy_add", (("kX", value),), "sm_90a"))
    assert text == f"struct Config {{\n    static constexpr {declaration}\n}};"


@pytest.mark.parametrize("value, error", [(2**63, InputError), (-(2**63), InputError), (1.5, InputTypeError), (None, InputTypeError)])
def test_field_that_has_no_declaration(value, error):
    with pytest.raises(error, match="kX"):
        config_struct(KernelSpec("toy_add", (("kX", value),), "sm_90a"))


def test_fields_keep_their_order():
    text = config_struct(KernelSpec("toy_add", (("kB", 1), ("kA", 2), ("kC", 3)), "sm_90a"))
    assert re.findall(r"k[ABC]", text) == ["kB", "kA", "kC"]


def test_source_holds_struct_symbol_and_last_newline(place):
    source = render(spec(7))
    assert config_struct(spec(7)) in source
    assert "chord_toy_add(" in source
    assert source.endswith("}\n")


def test_v17_source_does_not_depend_on_what_was_rendered_before(place):
    first = render(spec(7))
    others = {render(spec(scale)) for scale in range(100, 200)}
    assert len(others) == 100 and render(spec(7)) == first not in others
    assert key_of(spec(7)).source == first


def test_unknown_stem_lists_the_templates(place):
    with pytest.raises(InputError, match="toy_add.*w4a16_mma") as caught:
        render(KernelSpec("toy_adder", (), "sm_90a"))
    assert "toy_adder" in str(caught.value)


def test_undefined_name_in_a_template_is_an_error(tmp_path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "loose.cu.j2").write_text("{{ missing }}")
    with assets.scope(tmp_path), pytest.raises(UndefinedError, match="missing"):
        render(KernelSpec("loose", (), "sm_90a"))
