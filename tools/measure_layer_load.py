"""Measures the load of one MoE layer from a checkpoint in the page cache onto the GPU: seconds, host memory, GPU memory.

    python tools/measure_layer_load.py OUT.json --commit $(git rev-parse HEAD)

Makes a checkpoint of one layer with Kimi K2's shapes, 48 experts, in a folder that goes afterwards: one expert is drawn and
compressed by the compressed-tensors library, the others are copies of it under their own names. Loads it several times in a
process of its own. Prints what it found; OUT.json goes to ``benchmarks/results/layer_load/`` to stand in ``docs/formats.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import record  # noqa: E402
from tools.layer_load import checkpoint, report  # noqa: E402

_KIMI = {"hidden": 7168, "intermediate": 2048, "experts": 48}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--commit", required=True, help="what is measured: git rev-parse HEAD")
    parser.add_argument("--repeat", type=int, default=4, help="loads in one process; default: 4")
    parser.add_argument("--device", default="cuda", help="where to; default: cuda")
    for name, value in _KIMI.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    arguments = parser.parse_args(argv)
    sizes = {name: getattr(arguments, name) for name in _KIMI}
    with tempfile.TemporaryDirectory(prefix="chord-layer-load-") as folder:
        size = checkpoint.write(Path(folder) / "model", **sizes)
        loads = _loads(Path(folder) / "model", arguments.device, arguments.repeat)
    run = {
        **record.origin(arguments.commit), "sizes": sizes, "checkpoint_bytes": size, "device": arguments.device, **loads,
    }  # fmt: skip
    record.save(run, arguments.out)
    print(report.block(run))
    return 0


def _loads(folder: Path, where: str, repeat: int) -> dict:
    """In a process that has made no checkpoint. Raises ``CalledProcessError`` where it fails; its words go to this one's."""
    command = [sys.executable, str(ROOT / "tools" / "layer_load" / "load.py"), str(folder), where, str(repeat)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
