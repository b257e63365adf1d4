"""The ``chord`` command. Exit codes: 0 done, 1 found wanting or broken, 2 refused (bad arguments, any ``ChordError``)."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from chord_jit.errors import ChordError
from chord_jit.version import VERSION

#: One module each, with ``add_parser(subparsers)`` and ``run(arguments) -> int``. Heavy imports belong inside ``run``.
COMMANDS = ("demo", "doctor", "warmup", "pack", "verify", "cache", "inspect", "bench", "tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors go to standard error."""
    parser = argparse.ArgumentParser(prog="chord", description="JIT-compiled CUDA kernels for mixture-of-experts serving.")
    parser.add_argument("--version", action="version", version=f"chord_jit {VERSION}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: import_module(f"chord_jit.cli.{name}") for name in COMMANDS}
    for module in modules.values():
        module.add_parser(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return modules[arguments.command].run(arguments)
    except ChordError as error:
        sys.stderr.write(f"chord {arguments.command}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"chord {arguments.command}: interrupted\n")
        return 130
    except Exception:
        traceback.print_exc()
        return 1
