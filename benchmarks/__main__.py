"""The command line: needs torch and polymax alone."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import archive, machine, numbers, record
from benchmarks.cases import SUITES
from benchmarks.layers import profile
from benchmarks.series.cases import from_files
from benchmarks.workload import Case
from polymax_recipes.demo import speed

RESULTS = archive.RESULTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite or show a file; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    speed.available(options.device)
    cases = _chosen(options.suite, options.data, options.device, options.only)
    facts = machine.describe(options.device, options.machine)
    absent = tuple(dict.fromkeys(peer for case in cases for peer in case.absent(options.device)))
    out = options.out
    known = machine.provenance(options.commit)
    date = options.date or known["date"]
    started = record.Run(
        options.suite, options.device, options.quick, date, known["commit"], known["recorded"], facts, absent, ()
    )
    # a part of a suite must not count as the whole
    if out is None and not options.quick and not options.only:
        out = archive.new_file(started)
    print(record.heading(started), end="\n\n")
    print(record.columns(), flush=True)
    rows: list[record.Row] = []
    for case in cases:
        for row in case.rows(options.device, options.quick):
            print(record.line(row), flush=True)
            rows.append(row)
        if options.out is not None:
            # what was measured stays, if the rest is stopped
            record.save(options.out, record.Run(**started.__dict__ | {"rows": tuple(rows)}))
    print(f"\n{record.summary(rows)}")
    if out is not None:
        record.save(out, record.Run(**started.__dict__ | {"rows": tuple(rows)}))
        print(f"wrote {out}")
    return 0


def show(options: argparse.Namespace) -> int:
    print("\n\n".join(map(record.table, record.load(options.file))))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print what is slower in NEW than in OLD; 1 if anything is."""
    slower, lines = archive.compare(options.old, options.new, options.percent)
    print("\n".join(lines))
    return 1 if slower else 0


def fill(options: argparse.Namespace) -> int:
    """Write the figures of documents from the results, or, with --check, say which differ."""
    changed = numbers.fill(check=options.check)
    for name in changed:
        print(f"{name}: {'differs from the results: run python -m benchmarks numbers' if options.check else 'written'}")
    return 1 if options.check and changed else 0


def layers(options: argparse.Namespace) -> int:
    speed.available(options.device)
    print(profile(options.device))
    return 0


def _chosen(suite: str, data: Sequence[Path], device: str, only: Sequence[str] | None) -> list[Case]:
    if data and suite != "series":
        raise ValueError(f"files are for suite series; {suite} makes its own data")
    known = from_files(data) if data else SUITES[suite]
    names = [case.name for case in known]
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise ValueError(f"--only: suite {suite} has no case {unknown[0]!r}; it has {', '.join(names)}")
    cases = [case for case in known if not only or case.name in only]
    cases = [case for case in cases if case.runs_on(device)]
    if not cases:
        raise ValueError(f"suite {suite} measures nothing on {device}")
    return cases


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="measure a suite")
    runner.add_argument("suite", choices=SUITES)
    runner.add_argument("data", nargs="*", type=Path, help="for series: .ts files, TRAIN TEST TRAIN TEST ...")
    runner.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    runner.add_argument("--machine", help="its name in the results; by default that of its processor or GPU")
    runner.add_argument("--out", type=Path, help="file to write; by default results/MACHINE/SUITE/DATE-COMMIT.json")
    runner.add_argument("--only", action="append", metavar="CASE", help="one case; may be repeated")
    runner.add_argument("--quick", action="store_true", help="one step of everything, tiny: does it run?")
    runner.add_argument("--date", help="the date to keep with the results; by default today's")
    runner.add_argument("--commit", help="of a tree that is a copy without its history")
    runner.set_defaults(command=run)
    shower = commands.add_parser("show", help="print the tables of a results file")
    shower.add_argument("file", type=Path)
    shower.set_defaults(command=show)
    comparer = commands.add_parser(
        "compare", help="list what is slower in NEW than in OLD; exits with 1 if anything is"
    )
    comparer.add_argument("old", type=Path, help="a results file, or a folder: the latest run of each suite in it")
    comparer.add_argument("new", type=Path, help="the same")
    comparer.add_argument("--percent", type=float, default=10.0, help="slower by more than this counts (10)")
    comparer.set_defaults(command=compare)
    filler = commands.add_parser("numbers", help="write the figures of README, docs and site from the results files")
    filler.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a figure differs")
    filler.set_defaults(command=fill)
    layered = commands.add_parser("layers", help="print what each layer of a small call costs")
    layered.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    layered.set_defaults(command=layers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
