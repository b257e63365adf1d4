"""The overlay of ``vllm.utils.humming``, the one module through which vLLM reaches Humming, and only when it needs a name of it.

A name is overlaid when vLLM first asks for it. What is overlaid looks at the layer: one of ours goes to our kernels, any other to
the original object with the original arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType

from chord_jit import knobs
from chord_jit.integrations.vllm import forward, layer, schema, sizes
from chord_jit.integrations.vllm.notes import note

#: First and last release line of vLLM whose facade we know.
OLDEST, NEWEST = (0, 30), (0, 33)
_MARK = "_chord_jit_overlay"
#: Names that the facade must offer: these, and of each pair below one.
_NEEDED = ("BaseWeightSchema", "CompressedTensorsWeightSchema", "HummingWeightSchema", "LayerConfig", "dtypes", "humming_forward",
           "get_heuristics_config")  # fmt: skip
_EITHER = (("prepare_and_transform_humming_tensors", "prepare_layer_config"), ("may_process_input", "may_quant_input"))


def install() -> None:
    """Overlays the facade of the vLLM that is installed, or says in one line why it does not."""
    if not knobs.read("CHORD_VLLM"):
        note("off: CHORD_VLLM=0")
        return
    import vllm

    version = str(getattr(vllm, "__version__", "unknown"))
    if not _known(version):
        span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        note(f"off: vLLM {version} is not one of {span}; its layers stay with Humming")
        return
    try:
        facade = import_module("vllm.utils.humming")
    except ImportError as error:
        note(f"off: vLLM {version} offers no vllm.utils.humming ({error})")
        return
    absent = _absent(facade)
    if absent:
        note(f"off: vllm.utils.humming of vLLM {version} lacks {', '.join(absent)}; its layers stay with Humming")
        return
    overlay(facade)


def overlay(facade: ModuleType) -> None:
    """Overlays ``facade``, once. Names that were asked for before are overlaid now, the others when they are."""
    if facade.__dict__.get(_MARK):
        return
    original = facade.__getattr__

    def resolve(name: str) -> object:
        value = original(name)
        if name in _OVERLAID:
            value = _OVERLAID[name](facade, value)
            setattr(facade, name, value)
        return value

    setattr(facade, _MARK, True)
    facade.__getattr__ = resolve
    for name in _OVERLAID.keys() & facade.__dict__.keys():
        setattr(facade, name, _OVERLAID[name](facade, facade.__dict__[name]))


def _known(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST


def _absent(facade: ModuleType) -> list[str]:
    there = set(getattr(facade, "_EXPORTS", ())) | facade.__dict__.keys()
    wanted = [*((name,) for name in _NEEDED), *_EITHER]
    if "prepare_layer_config" in there:
        wanted.append(("transform_humming_tensors",))
    missing = [" or ".join(names) for names in wanted if not there.intersection(names)]
    return missing if "__getattr__" in facade.__dict__ else [*missing, "__getattr__"]


def _by_config(ours: Callable, name: str = "config") -> Callable:
    """A function whose first argument, ``name``, is a layer's config: ``ours`` takes those of ours."""

    def make(facade: ModuleType, upstream: Callable) -> Callable:
        @wraps(upstream)
        def call(*args: object, **kwargs: object) -> object:
            config = args[0] if args else kwargs.get(name)
            return (ours if isinstance(config, layer.ServedLayer) else upstream)(*args, **kwargs)

        return call

    return make


def _by_arguments(ours: Callable) -> Callable:
    """A function that makes a layer's config: ``ours`` where ``layer.why_not`` has no objection."""

    def make(facade: ModuleType, upstream: Callable) -> Callable:
        takes = inspect.signature(upstream)

        @wraps(upstream)
        def call(*args: object, **kwargs: object) -> object:
            bound = takes.bind(*args, **kwargs)
            bound.apply_defaults()
            asked = layer.Asked.of(bound.arguments)
            reason = layer.why_not(facade, asked)
            if reason is None:
                note(f"serves {asked}: INT4 in groups of 32, BF16 activations")
                return ours(facade, asked)
            note(f"leaves {asked} to Humming: {reason}")
            return upstream(*args, **kwargs)

        return call

    return make


_OVERLAID: dict[str, Callable[[ModuleType, object], object]] = {
    "BaseWeightSchema": schema.base_schema,
    "prepare_and_transform_humming_tensors": _by_arguments(layer.prepare_and_pack),
    "prepare_layer_config": _by_arguments(layer.prepare),
    "transform_humming_tensors": _by_config(layer.pack),
    "get_heuristics_config": _by_config(sizes.heuristics, "layer_config"),
    "humming_forward": _by_config(forward.humming_forward),
    "may_process_input": _by_config(forward.may_process_input),
    "may_quant_input": _by_config(forward.may_quant_input),
}
