"""What a model's config.json says: the shape of its MoE layers, and whether its quantisation is the one we pack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chord_jit.errors import InputError
from chord_jit.formats.w4a16_layout import GROUP

_ASKED = "read the quantisation of a model"
#: Layers and experts are listed one by one, and sizes are multiplied: up to here neither takes memory or overflows, and no model
#: comes near.
_MOST, _MOST_OF_SIZE = 1 << 16, 1 << 24
_SIZES = ("hidden_size", "moe_intermediate_size")
_SCHEME = "compressed-tensors, pack-quantized, int4, group 32, symmetric, no activation order"


@dataclass(frozen=True)
class ModelShape:
    """``hidden``: width of the residual stream. ``moe_intermediate``: neurons of one expert. ``experts``: routed experts
    of a layer, all ranks together. ``top_k``: experts of a token. ``moe_layers``: indices of the layers that have experts.
    """

    hidden: int
    moe_intermediate: int
    experts: int
    top_k: int
    moe_layers: tuple[int, ...]


def read_config(source: str | Path | Mapping) -> Mapping:
    """config.json as a mapping: from a model folder, the file itself, or a mapping already read. Raises ``InputError``."""
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    return read_json(path)


def read_json(path: Path) -> Mapping:
    """A JSON file that holds an object. Raises ``InputError`` naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"read {path.name}", "the file must exist and be readable", {"path": path, "error": error.strerror},
            "pass the folder of a complete checkpoint",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"read {path.name}", "the file must be JSON", {"path": path, "error": error}, "download the file again") from None
    if not isinstance(content, Mapping):
        given = {"path": path, "type": type(content).__name__}
        raise InputError(f"read {path.name}", "the file must hold a JSON object", given, "download the file again")
    return content


def read_model_shape(source: str | Path | Mapping) -> ModelShape:
    """The MoE shape of a model named like DeepSeek-V3 (Kimi K2, K2-Thinking, K2.5, K2.6) or like Qwen3 MoE (``num_experts``).

    ``source``: a model folder, a config.json, or its content; the fields may lie in ``text_config``. Layers below
    ``first_k_dense_replace`` and those that ``moe_layer_freq`` does not divide are dense; in Qwen3's naming those of
    ``mlp_only_layers`` and those whose number, counted from 1, ``decoder_sparse_step`` does not divide.
    Raises ``InputError`` naming the field that is missing or impossible.
    """
    config = read_config(source)
    text = _text_config(config)
    named = "num_experts" if "num_experts" in text and "n_routed_experts" not in text else "n_routed_experts"
    layers, experts, top_k = _count(text, "num_hidden_layers"), _count(text, named), _count(text, "num_experts_per_tok")
    if top_k > experts:
        raise InputError(
            "read the shape of a model", "a token cannot go to more experts than there are",
            {"num_experts_per_tok": top_k, named: experts}, "pass the config.json as the model came with it",
        )
    return ModelShape(
        hidden=_count(text, "hidden_size"),
        moe_intermediate=_count(text, "moe_intermediate_size"),
        experts=experts,
        top_k=top_k,
        moe_layers=_qwen_layers(text, layers) if named == "num_experts" else _deepseek_layers(text, layers),
    )


def _deepseek_layers(text: Mapping, layers: int) -> tuple[int, ...]:
    dense, every = _count(text, "first_k_dense_replace", 0), max(_count(text, "moe_layer_freq", 1), 1)
    return tuple(layer for layer in range(dense, layers) if layer % every == 0)


def _qwen_layers(text: Mapping, layers: int) -> tuple[int, ...]:
    dense, every = text.get("mlp_only_layers"), max(_count(text, "decoder_sparse_step", 1), 1)
    dense = dense if isinstance(dense, list) else []
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % every == 0)


def require_int4_group32(source: str | Path | Mapping) -> None:
    """Refuses, with ``InputError``, a model whose quantisation is not the one that ``pack_w4a16`` takes, and says why."""
    config = read_config(source)
    quantization = config.get("quantization_config", _text_config(config).get("quantization_config"))
    if not isinstance(quantization, Mapping):
        raise InputError(
            _ASKED, "config.json must hold a quantization_config", {"wanted": _SCHEME},
            "pass a quantised checkpoint: unquantised weights are not packed here",
        )
    groups = quantization.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        groups = {"config_groups": {}}
    found = {"quant_method": quantization.get("quant_method"), "format": quantization.get("format")}
    wrong = _differences(found, {"quant_method": ("compressed-tensors",), "format": ("pack-quantized",)})
    absent = (None, {})
    plain = {
        "quantization_status": ("compressed", None), "kv_cache_scheme": absent, "sparsity_config": absent, "transform_config": absent,
    }
    wrong |= _differences(quantization, plain)
    for name, group in groups.items():
        wrong |= {f"{name}.{field}": value for field, value in _group_differences(group).items()}
    if wrong:
        raise InputError(_ASKED, f"it must be {_SCHEME}", wrong, "use a checkpoint of that format; others are not supported yet")


def _group_differences(group: object) -> dict[str, object]:
    group = group if isinstance(group, Mapping) else {}
    weights = group["weights"] if isinstance(group.get("weights"), Mapping) else {}
    wanted = {
        "num_bits": (4,), "type": ("int",), "strategy": ("group",), "group_size": (GROUP,), "symmetric": (True,),
        "dynamic": (False, None), "actorder": (None,), "block_structure": (None,),
    }
    outside = {"input_activations": (None,), "output_activations": (None,), "format": (None, "pack-quantized")}
    return _differences(weights, wanted) | _differences(group, outside)


def _differences(found: Mapping, wanted: Mapping[str, tuple]) -> dict[str, object]:
    return {name: found.get(name) for name, allowed in wanted.items() if found.get(name) not in allowed}


def _text_config(config: Mapping) -> Mapping:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _count(config: Mapping, name: str, default: int | None = None) -> int:
    value, most = config.get(name, default), _MOST_OF_SIZE if name in _SIZES else _MOST
    if isinstance(value, bool) or not isinstance(value, int) or not (default is None) <= value <= most:
        raise InputError(
            "read the shape of a model", f"{name} must be a positive integer, {most} at most", {name: value},
            "pass the config.json of a model with routed experts in the naming of DeepSeek-V3 or Qwen3 MoE",
        )
    return value
