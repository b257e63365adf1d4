"""Times schedules against each other and against the reader, taking turns in one process.

    python tools/bench_variants.py --tokens 1 20 "w4a16_mma 8x128x512 s3" "w4a16_mma 8x128x256 s3 ctas2"
    python tools/bench_variants.py --layer ep8_gate_up --tokens 20 --swiglu --candidates --out variants.json

Schedules are given as they print; --candidates adds all that the family calls worth timing. Each is checked against
FP64 before it is timed; an illegal or wrong one is listed with the reason. A tool for tuning: no peer, no claim.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from chord_jit import device  # noqa: E402
from chord_jit.bench import check, ours, results, targets, workload  # noqa: E402
from chord_jit.bench.cases import CASES, Case, select  # noqa: E402
from chord_jit.bench.reader import FORMS, Reader  # noqa: E402
from chord_jit.bench.timing import WriteFlush, interleave  # noqa: E402
from chord_jit.errors import ChordError  # noqa: E402
from chord_jit.families.indexed import FAMILY  # noqa: E402
from chord_jit.jit.warmup import warm_up  # noqa: E402
from chord_jit.schedules.schedule import Schedule  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="a schedule as it prints")
    parser.add_argument("--candidates", action="store_true", help="also every candidate of the family")
    parser.add_argument("--cases", choices=list(CASES), default="decode")
    parser.add_argument("--layer", help="only this layer of the set")
    parser.add_argument("--tokens", type=int, nargs="+", default=[])
    parser.add_argument("--swiglu", action="store_true", help="time the fused form; layers without gate and up are left out")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="write the rows as JSON to this file")
    return parser.parse_args()


class Tuner:
    """One process's worth of the things that every case needs."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments, self.swiglu = arguments, arguments.swiglu
        self.place = torch.device("cuda", torch.cuda.current_device())
        self.facts = device.facts(self.place.index)
        self.flush = WriteFlush(self.place)
        self.generator = torch.Generator(self.place).manual_seed(secrets.randbits(62))
        self.given = [ours.parse(text) for text in arguments.schedules]

    def cases(self) -> list[Case]:
        found = select(self.arguments.cases, tuple(self.arguments.tokens))
        return [case for case in found if self.arguments.layer in (None, case.layer.name) and (case.layer.gated or not self.swiglu)]

    def schedules(self, case: Case) -> list[Schedule]:
        free = ours.free_problem(case, self.facts, swiglu=self.swiglu)
        return list(dict.fromkeys([*self.given, *(FAMILY.candidates(free) if self.arguments.candidates else ())]))

    def compile(self, cases: list[Case]) -> None:
        specs = [form.spec(self.facts.arch) for form in FORMS]
        for case in cases:
            for schedule in self.schedules(case):
                try:
                    specs.append(FAMILY.spec(*ours.chosen(case, self.facts, swiglu=self.swiglu, family=ours.Fixed(schedule))))
                except ChordError:
                    continue  # listed with its reason when its turn comes
        print(warm_up(specs), flush=True)

    def measure(self, case: Case, weights: workload.Weights) -> dict:
        weight = weights.fused if self.swiglu else weights.plain
        inputs = workload.inputs(case, self.generator)
        wanted = check.exact(weight, inputs, swiglu=self.swiglu)
        rows, calls = {}, {form.name: Reader.of_weight(form, weight, inputs.active) for form in FORMS}
        for schedule in self.schedules(case):
            row = rows[str(schedule)] = {"us": None}
            try:
                bound = ours.scheduled(case, weight, inputs, self.facts, schedule, swiglu=self.swiglu)
                bound.call()
            except ChordError as refused:
                row["refused"] = refused.rule
                continue
            row["error"] = check.relative_l2(bound.out, wanted)
            if row["error"] <= targets.WRONG_ABOVE:
                calls[str(schedule)] = bound.call
        times = interleave(calls, self.flush, self.arguments.rounds)
        for name in rows.keys() & times.keys():
            rows[name]["us"] = times[name].median
        readers = {form.name: times[form.name].median for form in FORMS}
        return {"case": case.name, "swiglu": self.swiglu, "bytes": case.bytes, "reader_forms": readers, "schedules": rows}


def show(row: dict) -> None:
    """The case's readers and schedules, fastest first; what was not timed last."""
    reader = min(row["reader_forms"].values())
    print(f"\n{row['case']}{' swiglu' if row['swiglu'] else ''}: {row['bytes'] / 1e6:.0f} MB")
    for name, us in sorted(row["reader_forms"].items(), key=lambda item: item[1]):
        print(f"  {us:8.1f} us  {row['bytes'] / us / 1e3:6.0f} GB/s  {name}")
    for name, one in sorted(row["schedules"].items(), key=lambda item: item[1]["us"] or float("inf")):
        if one["us"] is None:
            print(f"  not timed  {name}: {one.get('refused') or 'error {error:.1e}'.format(**one)}")
        else:
            print(f"  {one['us']:8.1f} us  {100 * reader / one['us']:5.1f} % of the reader  {one['error']:.2e}  {name}")
    sys.stdout.flush()


def main() -> int:
    arguments = parse_arguments()
    if not device.present():
        sys.stderr.write("bench_variants: a GPU is needed to time kernels, and torch finds none here\n")
        return 2
    tuner = Tuner(arguments)
    cases = tuner.cases()
    tuner.compile(cases)
    rows = []
    for layer, group in groupby(cases, key=lambda case: case.layer):
        weights = workload.weights(layer, tuner.generator)
        for case in group:
            rows.append(tuner.measure(case, weights))
            show(rows[-1])
        del weights
        torch.cuda.empty_cache()
    if arguments.out:
        record = {"gpu": tuner.facts.name, "tree_hash": results.tree_hash(), "rounds": arguments.rounds, "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
