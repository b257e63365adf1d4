"""Stand-ins for packages that serve HTTP, read models' files or prompts, or decode images: vLLM imports them, no MoE layer calls them.

Only those that are not installed are stood in for. A stand-in gives an inert class for any name, good to inherit from, to annotate
with and to decorate with. A package that is neither installed nor listed stays an ``ImportError``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

NAMES = frozenset(
    "aiohttp anthropic blake3 cachetools cbor2 cloudpickle cpuinfo cv2 depyf diskcache einops fastapi flashinfer gguf "
    "huggingface_hub ijson jsonschema lark llguidance lmformatenforcer mcp mistral_common model_hosting_container_standards msgspec "
    "ninja numba nvtx openai openai_harmony opentelemetry orjson outlines_core partial_json_parser PIL prometheus_client psutil "
    "pybase64 pynvml pythonjsonlogger quack regex requests sentencepiece setproctitle starlette tiktoken tilelang tokenizers tqdm "
    "transformers tvm_ffi urllib3 uvloop watchfiles xgrammar yaml zmq".split()
)


class _Kind(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return inert(name)

    def __or__(cls, other: object) -> type:
        return object

    __ror__ = __or__


class Inert(metaclass=_Kind):
    """Takes any arguments and does nothing; as a decorator it gives back what it decorates."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __init_subclass__(cls, **kwargs: object) -> None: ...

    def __class_getitem__(cls, item: object) -> type:
        return cls

    def __call__(self, *args: object, **kwargs: object) -> object:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        from pydantic_core import core_schema

        return core_schema.any_schema()


def inert(name: str) -> type:
    return _Kind(name, (Inert,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder, for the packages of ``names``, whole: a module that an installed package lacks stays missing."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        package = name.partition(".")[0]
        ours = package in self.names and (name == package or sys.modules[package].__spec__.loader is self)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def get(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            setattr(module, name, inert(name))
            return module.__dict__[name]

        module.__path__, module.__getattr__ = [], get
        return module

    def exec_module(self, module: ModuleType) -> None: ...


def install() -> None:
    """Stands in for what is missing, in this process."""
    sys.meta_path.append(Finder(NAMES))


@contextmanager
def triton() -> Iterator[None]:
    """Within the block Triton can be imported, though it may be missing: Humming decorates kernels with it that nobody launches."""
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    finder = Finder(frozenset(("triton",)))
    sys.meta_path.append(finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]
