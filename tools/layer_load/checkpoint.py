"""A checkpoint of one MoE layer at the size of a real one, without drawing every expert of it."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from chord_jit.formats.synthetic import write_checkpoint

_EXPERTS_A_FILE = 8


def write(folder: Path, *, hidden: int, intermediate: int, experts: int) -> int:
    """Layer 1 of ``experts`` equal experts in the names and files of Kimi K2, and in the page cache. Returns the bytes of its tensors."""
    write_checkpoint(folder, hidden=hidden, intermediate=intermediate, experts=1, top_k=1, layers=1, seed=0, shards=1)
    only = folder / "model.safetensors"
    tensors = load_file(only)
    files = {}
    for first in range(0, experts, _EXPERTS_A_FILE):
        file = f"model-{first:05d}.safetensors"
        last = min(first + _EXPERTS_A_FILE, experts)
        # Copies: safetensors refuses tensors that share their memory.
        part = {_named(name, expert): tensor.clone() for expert in range(first, last) for name, tensor in tensors.items()}
        save_file(part, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(part, file)
    only.unlink()
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_routed_experts": experts}))
    size = experts * sum(tensor.nbytes for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": files}))
    return size


def _named(name: str, expert: int) -> str:
    return name.replace(".experts.0.", f".experts.{expert}.")
