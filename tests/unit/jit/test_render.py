"""From spec to source."""

from __future__ import annotations

import re
import sys

import pytest
from jinja2 import Environment, UndefinedError

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


def by_jinja(text: str, wanted: KernelSpec) -> str:
    template = Environment(keep_trailing_newline=True).from_string(text)
    return template.render(spec=wanted, symbol=wanted.symbol, config_struct=config_struct(wanted))


OWN = sorted(assets.folder("templates").glob("*.j2"))


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_templates_need_no_jinja_and_mean_the_same_to_it(path, monkeypatch):
    wanted = KernelSpec(path.name.removesuffix(".cu.j2"), (("kX", 3), ("kY", "{{ 1 }}"), ("kZ", True)), "sm_100a")
    expected = by_jinja(path.read_text(), wanted)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert render(wanted) == expected


FULL = ("{{ symbol }} {{symbol}}", "{{ spec.config[0][1] + 1 }}", "{% if spec.arch == 'sm_90a' %}a{% endif %}\n", "{# no #}{{ symbol }}\r")


@pytest.mark.parametrize("text", FULL)
def test_all_of_jinja_is_there_for_other_templates(tmp_path, text):
    wanted = KernelSpec("full", (("kX", 3),), "sm_90a")
    with templates(tmp_path, "full", text):
        assert render(wanted) == by_jinja(text, wanted)


@pytest.mark.parametrize("text", ["{{ missing }}", "{{ spec.missing }}", "{{ symbol }}{{ missing }}"])
def test_undefined_name_in_a_template_is_an_error(tmp_path, text):
    with templates(tmp_path, "loose", text), pytest.raises(UndefinedError, match="missing"):
        render(KernelSpec("loose", (), "sm_90a"))


def templates(root, stem: str, text: str):
    """Within the block there is a template of this text."""
    (root / "templates").mkdir()
    (root / "templates" / f"{stem}.cu.j2").write_bytes(text.encode())
    return assets.scope(root)
