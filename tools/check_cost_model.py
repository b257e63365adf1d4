"""How good the cost model's choice is where no table has a row, on the GPU at hand.

    python tools/check_cost_model.py [--schedules 16] [--json FILE --commit $(git rev-parse HEAD)]
    python tools/check_cost_model.py --compile-only                  fill the cache, on any machine

Indexed calls of other models than the tables hold: what the resolver chooses takes turns with a sample of the legal schedules, all
checked against FP64. The choice may take 1.3 times as long as the best of them. FILE goes to ``benchmarks/results/cost_model/`` to
stand in ``docs/schedules.md``. Exit 1 where one takes longer, or computes something else, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from chord_jit import device  # noqa: E402
from chord_jit.bench import ours, targets  # noqa: E402
from chord_jit.bench.cases import PrefillCase  # noqa: E402
from chord_jit.device import DeviceFacts  # noqa: E402
from chord_jit.families.base import family  # noqa: E402
from chord_jit.jit.spec import KernelSpec  # noqa: E402
from chord_jit.jit.warmup import warm_up  # noqa: E402
from chord_jit.schedules import cost  # noqa: E402
from chord_jit.schedules.deployment import Deployment  # noqa: E402
from chord_jit.schedules.schedule import Schedule  # noqa: E402
from chord_jit.tune.contest import Contest  # noqa: E402
from chord_jit.tune.model import draw_of, layers_of  # noqa: E402
from tools import record  # noqa: E402

MOST_RATIO, LEAST_SCHEDULES, ROUNDS = 1.3, 12, 20
#: Hidden, expert intermediate, experts and top k of each model.
MODELS = {"DeepSeek-V3": (7168, 2048, 256, 8), "Qwen3-30B-A3B": (2048, 768, 128, 8), "Qwen3-235B-A22B": (4096, 1536, 128, 8)}
#: Model, its ranks, projection and routed rows of a call.
PROBLEMS = (
    ("DeepSeek-V3", dict(ep=8), "gate_up", 2048),
    ("DeepSeek-V3", dict(ep=16), "down", 8192),
    ("DeepSeek-V3", dict(tp=8), "gate_up", 8192),
    ("Qwen3-30B-A3B", dict(ep=8), "gate_up", 256),
    ("Qwen3-30B-A3B", dict(ep=8), "down", 64),
    ("Qwen3-30B-A3B", dict(tp=8), "down", 4096),
    ("Qwen3-235B-A22B", dict(ep=8), "gate_up", 1024),
    ("Qwen3-235B-A22B", dict(tp=8), "down", 8192),
)


@dataclass(frozen=True)
class Search:
    """One problem, what is chosen for it, and what takes turns with that."""

    model: str
    case: PrefillCase
    swiglu: bool
    problem: object
    choice: Schedule
    sample: tuple[Schedule, ...]

    @property
    def name(self) -> str:
        layer = self.case.layer
        return f"{self.model} {layer.name} {layer.experts}x{layer.n}x{layer.k}{' swiglu' if self.swiglu else ''}"

    @property
    def schedules(self) -> list[Schedule]:
        return [self.choice, *self.sample]

    def specs(self) -> list[KernelSpec]:
        """The kernels of ``schedules``."""
        return [family(self.case.family).spec(self.problem, schedule) for schedule in self.schedules]

    def without(self, failed: Collection[KernelSpec]) -> Search:
        """The same, less the schedules of the sample whose kernels do not compile."""
        left = (schedule for schedule, spec in zip(self.sample, self.specs()[1:], strict=True) if spec not in failed)
        return replace(self, sample=tuple(left))


def searches(facts: DeviceFacts, schedules: int) -> list[Search]:
    """Every problem with its sample; ``schedules`` of it beside the choice."""
    found = []
    for model, ranks, projection, rows in PROBLEMS:
        deployment = Deployment(*MODELS[model], **ranks)
        layer = dict(zip(("gate_up", "down"), layers_of(deployment), strict=True))[projection]
        picks = min(deployment.top_k, layer.experts)
        case = PrefillCase(layer, draw_of(rows // picks, layer.experts, picks))
        problem = ours.free_problem(case, facts, swiglu=layer.gated)
        if Contest(case, layer.gated, problem).held is not None:
            raise SystemExit(f"{model} {layer.name} with {rows} rows is in a table: it says nothing of the cost model")
        choice = family(case.family).schedule(problem)
        found.append(Search(model, case, layer.gated, problem, choice, sampled(problem, choice, schedules)))
    return found


def sampled(problem: object, choice: Schedule, count: int) -> tuple[Schedule, ...]:
    """``count`` other candidates, the same ones each time: a third the model's next best, each of another tile, the rest at random,
    each of another tile as long as there are tiles."""
    every = [one for one in family(problem.family).candidates(problem) if one != choice]
    ranked = sorted(every, key=lambda one: cost.estimate(problem, one))
    shuffled = random.Random(0).sample(every, len(every))
    taken = dict.fromkeys([*_first_of_each_tile(ranked)[: count // 3], *_first_of_each_tile(shuffled), *shuffled])
    return tuple(taken)[:count]


def _first_of_each_tile(schedules: Iterable[Schedule]) -> list[Schedule]:
    found: dict[tuple, Schedule] = {}
    for one in schedules:
        found.setdefault((one.kernel, one.bm, one.bn, one.bk), one)
    return list(found.values())


def measured(search: Search, weights: object, generator: object, flush: object, facts: DeviceFacts) -> dict[str, object]:
    """Microseconds by schedule, and what was refused or wrong."""
    from chord_jit.bench import check, workload
    from chord_jit.bench.timing import interleave

    weight = weights.fused if search.swiglu else weights.plain
    inputs = workload.inputs(search.case, generator)
    wanted, calls, wrong = check.exact(weight, inputs, swiglu=search.swiglu), {}, {}
    for schedule in search.schedules:
        bound = ours.scheduled(search.case, weight, inputs, facts, schedule, swiglu=search.swiglu)
        bound.call()
        error = check.relative_l2(bound.out, wanted)
        if error > targets.WRONG_ABOVE:
            wrong[str(schedule)] = error
        else:
            calls[str(schedule)] = bound.call
    times = interleave(calls, flush, ROUNDS)
    return verdict(search, {name: spread.median for name, spread in times.items()}, wrong)


def verdict(search: Search, us: Mapping[str, float], wrong: Mapping[str, float]) -> dict[str, object]:
    """The choice against the best of all that were timed. ``ratio``: None where the choice itself is wrong."""
    best = min(us, key=us.get)
    choice = str(search.choice)
    ratio = us[choice] / us[best] if choice in us else None
    passed = not wrong and ratio is not None and ratio <= MOST_RATIO
    return {
        "problem": search.name, "rows": search.case.rows, "choice": choice, "choice_us": us.get(choice), "best": best, "best_us": us[best],
        "ratio": ratio, "passed": passed, "us": dict(sorted(us.items(), key=lambda item: item[1])), "wrong": dict(wrong),
    }  # fmt: skip


def line(row: Mapping) -> str:
    ratio = "wrong" if row["ratio"] is None else f"{row['ratio']:.2f}"
    chosen = "-" if row["choice_us"] is None else f"{row['choice_us']:.1f}"
    mark = "" if row["passed"] else f"  MISSED{': ' + ', '.join(row['wrong']) if row['wrong'] else ''}"
    return (
        f"{row['problem']:58} {row['rows']:6} rows  {chosen:>8} us {row['choice']:34} best {row['best_us']:8.1f} us {row['best']:34}"
        f" {ratio}{mark}"
    )


def recorded(rows: list[dict], commit: str, schedules: int) -> dict[str, object]:
    """The whole run as its file holds it; ``command`` names what decides the numbers, no places."""
    command = f"python tools/check_cost_model.py --schedules {schedules} --json FILE --commit COMMIT"
    return {**record.origin(commit), "command": command, "rounds": ROUNDS, "most_ratio": MOST_RATIO, "problems": rows}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=16, help="of the sample, at least 12 (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was timed; needs --commit")
    parser.add_argument("--commit", help="what is measured: git rev-parse HEAD")
    parser.add_argument("--compile-only", action="store_true")
    given = parser.parse_args(arguments)
    if given.schedules < LEAST_SCHEDULES:
        parser.error(f"a sample holds {LEAST_SCHEDULES} schedules at least")
    if given.json and not given.commit:
        parser.error("--json writes a record, which needs the commit that was measured: add --commit $(git rev-parse HEAD)")
    here = device.current()
    if here is None and not given.compile_only:
        print("a GPU is needed to time kernels; --compile-only fills the cache", file=sys.stderr)
        return 2
    facts = here or device.target("sm_90a")
    wanted = searches(facts, given.schedules)
    report = warm_up([spec for one in wanted for spec in one.specs()])
    print(report)
    if given.compile_only:
        return int(report.failed > 0)
    failed = {spec for spec, _ in report.errors}
    rows = [*_measure_all([one.without(failed) for one in wanted], facts)]
    if given.json:
        record.save(recorded(rows, given.commit, given.schedules), given.json)
    return int(not all(row["passed"] for row in rows))


def _measure_all(wanted: list[Search], facts: DeviceFacts) -> Iterator[dict]:
    """A row for each search, printed as it comes."""
    import torch

    from chord_jit.bench import workload
    from chord_jit.bench.timing import WriteFlush

    where = torch.device("cuda", torch.cuda.current_device())
    generator, flush = torch.Generator(where).manual_seed(0), WriteFlush(where)
    for search in wanted:
        weights = workload.weights(search.case.layer, generator)
        row = measured(search, weights, generator, flush, facts)
        print(line(row), flush=True)
        yield row
        del weights
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
