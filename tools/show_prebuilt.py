"""Shows that kernels built on a machine without a GPU run on one with it, and that nothing is compiled there.

On any machine, with the same commit:

    export CHORD_CACHE_DIR=$PWD/kimi
    python -c "import chord_jit; print(chord_jit.warm_up(chord_jit.Deployment(7168, 2048, 384, 8, ep=8)))"
    chord cache export kimi-k2-ep8.tar

On the machine with the GPU:

    python tools/show_prebuilt.py kimi-k2-ep8.tar

The archive is imported into a fresh folder, which is then read-only and the only place with kernels: a process of its own, without a
home, a cache or a lock folder that it could write, a compiler or a header, runs both projections of Kimi K2 EP8 through ``indexed``,
``contiguous`` and ``masked`` on random data against the FP64 references. Prints JSON; exit code 1 unless every result is right,
kernels were found and none was compiled; 2 for an archive that is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from chord_jit.errors import ChordError  # noqa: E402
from tools.measure_startup import NOWHERE, environment, read_only  # noqa: E402
from tools.record import machine  # noqa: E402

MODEL = dict(hidden=7168, intermediate=2048, experts=384, top_k=8, ep=8)
TOKENS, ROWS_PER_EXPERT, MASKED = (1, 20, 256), (3, 100, 400), ((1, 8), (40, 64))
WRONG_ABOVE = 1e-2


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="of chord cache export")
    parser.add_argument("--timeout", type=float, default=500.0, help="seconds for everything on the GPU; default: 500")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="chord-prebuilt-", ignore_cleanup_errors=True) as folder:
        try:
            imported = unpack(arguments.archive, Path(folder) / "kernels")
        except ChordError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        shown = {"archive": arguments.archive.name, "kernels": imported, "machine": machine(), **run(Path(folder), arguments.timeout)}
    shown["ok"] = proven(shown)
    print(json.dumps(shown, indent=1))
    return 0 if shown["ok"] else 1


def proven(shown: dict) -> bool:
    """Whether what the process said is what is to be shown."""
    if "failed" in shown:
        return False
    counters, cases = shown["counters"], shown["cases"]
    clean = counters["compiles"] == counters["failures"] == 0 and counters["hits"] > 0 and counters["loads"] > 0
    return clean and shown["missing_parts"] == 5 and bool(cases) and all(case["error"] <= WRONG_ABOVE and case["kept"] for case in cases)


def unpack(archive_file: Path, folder: Path) -> int:
    """The kernels of the archive in a fresh, read-only ``folder``; their number."""
    from chord_jit import knobs
    from chord_jit.jit import archive
    from chord_jit.jit.store import user_store

    with knobs.scope(CHORD_CACHE_DIR=str(folder)):
        imported = archive.load(archive_file, user_store())
    read_only(folder)
    return len(imported.new)


def run(folder: Path, timeout: float) -> dict:
    """What a process found that has ``folder/kernels`` and nothing else; ``failed`` where it did not end well."""
    closed = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "CHORD_CACHE_DIR", "CHORD_LOCK_DIR", "CUDA_HOME"), NOWHERE)
    closed = environment(folder / "home", **closed, CHORD_PREBUILT=str(folder / "kernels"))
    command = [sys.executable, "-c", "from tools import show_prebuilt; show_prebuilt.inside()"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=closed, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {timeout:g} s"}
    if done.returncode:
        return {"failed": done.stderr[-4000:]}
    return json.loads(done.stdout.splitlines()[-1])


def inside() -> None:
    """The process without anything: prints what it found as JSON."""
    import torch

    import chord_jit
    from chord_jit.jit import toolchain
    from chord_jit.schedules.deployment import Deployment
    from tools.startup.parts import hide_compilers

    torch.ones(1, device="cuda")
    hide_compilers()
    missing = len(toolchain.discover().missing)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cases = list(results(Deployment(**MODEL), "cuda", chord_jit))
    found = {"cases": cases, "counters": asdict(chord_jit.counters()), "missing_parts": missing}
    print(json.dumps({**found, "notices": [str(one.message) for one in said]}))


def results(model, device: str, calls) -> Iterator[dict]:
    """``case``, ``error`` (relative L2 against FP64) and ``kept`` (rows of nobody stayed as they were) of each call.

    ``calls`` has the public calls: chord_jit, or in a test something that needs no GPU.
    """
    import torch

    from chord_jit.formats.w4a16 import GROUP, pack_w4a16
    from chord_jit.reference import grouped, indexed
    from chord_jit.routing.grouped import blocks_of, offsets_of
    from chord_jit.routing.indexed import align_blocks

    generator, experts = torch.Generator(device=device).manual_seed(5), model.local_experts
    at = dict(generator=generator, device=device)

    def weight(n: int, k: int, interleave: bool):
        words = torch.randint(-(2**31), 2**31 - 1, (experts, n, k // 8), dtype=torch.int32, **at)
        scale = (torch.rand(experts, n, k // GROUP, **at) + 0.5) / (5 * k**0.5)
        return pack_w4a16(words, scale.to(torch.bfloat16), interleave=interleave)

    def rows_of_x(*shape: int):
        return torch.randn(*shape, **at).to(torch.bfloat16)

    references = {"indexed": indexed.indexed, "contiguous": grouped.contiguous, "masked": grouped.masked}

    def compared(case: str, *arguments: object, **more: object) -> dict:
        """The call that ``case`` begins with, beside its reference, which takes the same arguments."""
        name = case.split()[0]
        wanted = references[name](*arguments, **more)
        out = torch.full(wanted.shape, float("nan"), dtype=torch.bfloat16, device=device)
        getattr(calls, name)(*arguments, out=out, **more)
        nobody = wanted.isnan()
        error = ((out.double() - wanted)[~nobody].norm() / wanted[~nobody].norm()).item()
        return {"case": case, "error": error if error == error else float("inf"), "kept": bool(out.isnan()[nobody].all())}

    here = torch.arange(model.experts, dtype=torch.int32, device=device)
    expert_map = torch.where(here < experts, here, -1)
    for name, (n, k), swiglu in (("gate/up", model.gate_up, True), ("down", model.down, False)):
        w = weight(n, k, swiglu)
        for tokens in TOKENS:
            ids = torch.rand(tokens, model.experts, **at).argsort(1)[:, : model.top_k].to(torch.int32)
            ids[:, 0] %= experts
            expected = tokens * model.top_k / model.experts
            routing = align_blocks(ids, calls.block_m_for(w, expected, swiglu=swiglu), experts, expert_map=expert_map)
            routing = routing if swiglu else routing.for_down()
            x = rows_of_x(tokens if swiglu else tokens * model.top_k, k)
            weights = None if swiglu else torch.rand(tokens * model.top_k, 1, **at)
            yield compared(f"indexed {name} {tokens} tokens", x, w, routing, swiglu=swiglu, topk_weights=weights)
        for rows in ROWS_PER_EXPERT:
            counts = torch.randint(0, 2 * rows + 1, (experts,), **at)
            made = blocks_of(counts)
            yield compared(f"contiguous {name} {rows} rows, blocks", rows_of_x(made.numel(), k), w, made, swiglu=swiglu)
            made = offsets_of(counts)
            yield compared(f"contiguous {name} {rows} rows, offsets", rows_of_x(int(made[-1]), k), w, offsets=made, swiglu=swiglu)
        for rows, most in MASKED:
            counts = torch.randint(0, most + 1, (experts,), **at).to(torch.int32)
            yield compared(f"masked {name} {rows} of {most} rows", rows_of_x(experts * most, k), w, counts, rows, swiglu=swiglu)


if __name__ == "__main__":
    sys.exit(main())
