"""``chord tune``: measure the legal schedules of layers on a GPU, and put the winners into the tables. ``docs/schedules.md``."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from chord_jit import device, knobs
from chord_jit.cli.arguments import positive
from chord_jit.cli.bench import CALL_SETS
from chord_jit.cli.console import counting, write
from chord_jit.cli.kept import require_kept
from chord_jit.device import TARGETS
from chord_jit.errors import InputError

LAYOUTS = ("contiguous", "indexed", "masked")
_ONLY, _ALSO = "only", "also"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("tune", help="measure the legal schedules of layers on a GPU and write the winners into the tables")
    parser.add_argument("--cases", nargs="+", choices=CALL_SETS, help="case sets of chord bench (default: decode)")
    parser.add_argument("--model", type=Path, metavar="CONFIG", help="instead: the layers of a model, by its config.json or folder")
    parser.add_argument("--tp", type=positive, default=1, help="with --model: ranks that share each expert's neurons")
    parser.add_argument("--ep", type=positive, default=1, help="with --model: ranks that share the experts")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=[], help="only these layouts (default: all)")
    parser.add_argument("--layers", "--layer", nargs="+", default=[], metavar="NAME", help="only these layers")
    parser.add_argument("--rows", "--tokens", dest="sizes", type=positive, nargs="+", default=[], metavar="N",
                        help="only these sizes: tokens of indexed cases, rows per expert of grouped ones")  # fmt: skip
    parser.add_argument("--swiglu", nargs="?", const=_ONLY, choices=(_ONLY, _ALSO),
                        help="time the form with SwiGLU fused, of layers that have it: only that one, or also (default: only)")  # fmt: skip
    parser.add_argument("--schedules", nargs="+", default=[], metavar="TEXT", help="only these, as they print: 'w4a16_mma 8x128x512 s3'")
    parser.add_argument("--candidates", action="store_true", help="with --schedules: also every candidate of the family")
    parser.add_argument("--most", type=positive, metavar="N", help="of the candidates, the N that the cost model holds for fastest")
    parser.add_argument("--companions", action="store_true",
                        help="also the calls that take turns with a case in chord bench: padded blocks, equal rows")  # fmt: skip
    parser.add_argument("--readers", action="store_true", help="time the read-only kernels of the same bytes too")
    parser.add_argument("--rounds", type=positive, default=60, metavar="N", help="samples that decide (default: %(default)s)")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache and stop; needs no GPU")
    parser.add_argument("--arch", choices=sorted(TARGETS), default="sm_90a", help="with --compile-only and no GPU: the target")
    parser.add_argument("--jobs", type=positive, metavar="N", help="compiles at a time (default: all cores)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="journal of the run, a new file (default: a temporary one)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with this journal; with --out: with a copy of it there")
    parser.add_argument("--commit", default="unknown", metavar="HASH", help="commit of the tree, recorded in rows; --write needs it")
    parser.add_argument("--write", action="store_true", help="put the winners into the tables; without it they are printed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found. 0 when everything was measured, 1 when something was not, 2 without a GPU that it takes."""
    from chord_jit.schedules.schedule import parse
    from chord_jit.tune import session
    from chord_jit.tune.contest import contests
    from chord_jit.tune.journal import Journal
    from chord_jit.tune.supervise import supervise
    from chord_jit.tune.worker import work

    here = device.current()
    earlier = Journal.read(arguments.resume) if arguments.resume else None
    if here is None and earlier is None and not arguments.compile_only:
        sys.stderr.write(
            "chord tune: a GPU is needed to time kernels, and torch finds none here; --compile-only fills the cache, "
            "--resume FILE decides from what a journal holds\n"
        )
        return 2
    facts = here or (session.facts_of(earlier.header) if earlier else device.target(arguments.arch))
    forms = {None: (False,), _ONLY: (True,), _ALSO: (False, True)}[arguments.swiglu]
    given = [parse(text) for text in arguments.schedules]
    candidates = arguments.candidates or not given
    wanted = contests(_cases(arguments), facts, forms=forms, given=given, candidates=candidates, most=arguments.most)
    if not wanted:
        raise InputError("tune schedules", "some case must be left", {"command": command(arguments)}, "name other layers, layouts or sizes")
    if arguments.worker:
        with counting("tuning") as progress:
            work(wanted, earlier, rounds=arguments.rounds, readers=arguments.readers, on_step=progress)
        return 0
    if arguments.compile_only:
        return _compile_only(arguments, wanted)
    if arguments.write:
        session.require_commit(arguments.commit, earlier)
    journal = session.begin(wanted, here, earlier, arguments.out or _new_file(arguments), command(arguments), arguments.commit)
    left = session.left_of(wanted, journal, arguments.rounds) if here else []
    if left:
        with counting("kernels") as progress:
            session.prepare(left, journal, arguments.jobs, progress)
    code = supervise(lambda: _worker(arguments, journal.path), journal.path) if left else 0
    return _decide(arguments, wanted, journal.path) or code


def command(arguments: argparse.Namespace) -> str:
    """The command as a row's provenance quotes it: what decides the numbers, no places."""
    return shlex.join(["chord", "tune", *_words(arguments, arguments.model and arguments.model.name)])


def _words(arguments: argparse.Namespace, model: object) -> list[str]:
    words = ["--model", str(model), "--tp", str(arguments.tp), "--ep", str(arguments.ep)] if model else ["--cases", *_sets(arguments)]
    for name, values in (("layout", arguments.layout), ("layers", arguments.layers), ("rows", arguments.sizes)):
        words += [f"--{name}", *map(str, values)] if values else []
    words += ["--swiglu", arguments.swiglu] if arguments.swiglu else []
    words += ["--schedules", *arguments.schedules] if arguments.schedules else []
    words += ["--most", str(arguments.most)] if arguments.most else []
    words += [f"--{name}" for name in ("candidates", "companions", "readers") if getattr(arguments, name)]
    return [*words, "--rounds", str(arguments.rounds)]


def _sets(arguments: argparse.Namespace) -> list[str]:
    return arguments.cases or ["decode"]


def _cases(arguments: argparse.Namespace) -> list:
    from chord_jit.bench.cases import select
    from chord_jit.formats.model_config import read_model_shape
    from chord_jit.schedules import table
    from chord_jit.schedules.deployment import Deployment
    from chord_jit.tune.contest import with_companions
    from chord_jit.tune.model import cases_of

    if arguments.model is None:
        found = [case for name in _sets(arguments) for case in select(name)]
    elif arguments.cases:
        given = {"cases": " ".join(arguments.cases), "model": arguments.model.name}
        raise InputError("tune schedules", "--cases and --model exclude each other", given, "name one of them")
    else:
        shape = read_model_shape(arguments.model)
        model = Deployment(shape.hidden, shape.moe_intermediate, shape.experts, shape.top_k, tp=arguments.tp, ep=arguments.ep)
        found = list(cases_of(model, arguments.layout or LAYOUTS, arguments.sizes))
    for name, of in (("layers", lambda case: case.layer.name), ("sizes", lambda case: case.size)):
        known, wanted = sorted({of(case) for case in found}), getattr(arguments, name)
        if unknown := [value for value in wanted if value not in known]:
            raise InputError("select cases to tune", f"all {name} must be known", {name: unknown, "known": known}, "choose among these")
        found = [case for case in found if not wanted or of(case) in wanted]
    found = list(with_companions(found)) if arguments.companions else found
    return [case for case in found if not arguments.layout or table.layout_of(case.layout) in arguments.layout]


def _compile_only(arguments: argparse.Namespace, wanted: list) -> int:
    from chord_jit.tune.build import compile_all

    require_kept("compile what competes", (spec for contest in wanted for _, spec in contest.specs()))
    with counting("kernels") as progress:
        report = compile_all(wanted, arguments.jobs, progress)
    outcome = {"compiled": report.compiled, "hit": report.hit, "failed": report.failed, "seconds": round(report.seconds, 3)}
    write(json.dumps(outcome) if arguments.json else str(report))
    return 1 if report.failed else 0


def _new_file(arguments: argparse.Namespace) -> Path | None:
    """Where a journal goes that nobody named; none where one is resumed."""
    return None if arguments.resume else Path(tempfile.mkdtemp(prefix="chord-tune-")) / "journal.jsonl"


def _worker(arguments: argparse.Namespace, journal: Path) -> subprocess.Popen:
    from chord_jit.jit.workers import interpreter, search_path

    words = [*_words(arguments, arguments.model), "--resume", str(journal), "--worker"]
    return subprocess.Popen([*interpreter(), "-m", "chord_jit", "tune", *words], env=knobs.child_environment(PYTHONPATH=search_path()))


def _decide(arguments: argparse.Namespace, wanted: list, path: Path) -> int:
    from chord_jit.tune import report, session
    from chord_jit.tune import write as tables
    from chord_jit.tune.journal import Journal

    journal = Journal.read(path)
    outcome = session.decide(wanted, journal, arguments.rounds, arguments.commit)
    if arguments.json:
        write(json.dumps(report.as_json(journal.header, wanted, outcome.held, arguments.rounds, outcome.before, outcome.after), indent=1))
    else:
        for contest in wanted:
            write("\n".join(report.lines(contest, outcome.held[contest.name], arguments.rounds)))
        write("\n".join(report.changed(outcome.before, outcome.after)) or "the tables stay as they are")
    if arguments.write:
        for file in tables.write(outcome.after):
            sys.stderr.write(f"wrote {file.name}\n")
    sys.stderr.write(f"chord tune: {outcome.measured} of {len(wanted)} cases measured; journal: {path}\n")
    return 0 if outcome.measured == len(wanted) else 1
