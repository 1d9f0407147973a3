"""Length generalisation: models that learn on short sequences, by attention and seed, and what they get right on long.

    python -m benchmarks.lengths small runs --machine laptop --keep
    python -m benchmarks.lengths paper runs --device cuda --problem sort --attention asentmax --seeds 3

A plan says sizes: `small` takes about a quarter of an hour on one core, `minutes` ten minutes, and `paper` has those of
Vasylenko et al. 2025, which take GPUs days. Each training writes a file to the folder of runs; the command goes on with
those that have none, so that it can be stopped, and started on several machines. --keep adds what is finished to
benchmarks/results.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

from benchmarks import archive, machine
from polymax_recipes.demo import speed
from polymax_recipes.lengths.learn import Setting, run
from polymax_recipes.lengths.model import ATTENTIONS
from polymax_recipes.lengths.problems import PROBLEMS, AssociativeRecall, Copy, FlipFlop, Problem, Sort, TwoBack
from polymax_recipes.outputs import atomic_write

NAMES = ("softmax", "entmax", "asentmax")


@dataclass(frozen=True)
class Plan:
    """A problem at a size, how it is trained, and the lengths of sources at which it is tested."""

    problem: Problem
    setting: Setting
    lengths: tuple[int, ...]
    count: int = 1_000


def _paper(problem: str, layers: int, size: int, heads: int, steps: int, lr: float, *times: float) -> Plan:
    least, most = (64, 128) if problem == "count" else (32, 64)
    sizes = {"layers": layers, "size": size, "heads": heads, "shortest": least, "longest": most}
    setting = Setting("", steps=steps, lr=lr, warmup=20_000, **sizes)
    return Plan(PROBLEMS[problem], setting, tuple(int(most * factor) for factor in times))


def _small(problem: Problem, steps: int, *lengths: int) -> Plan:
    few = Setting("", size=64, heads=4, shortest=8, longest=16, steps=steps, batch_size=32, lr=3e-3, warmup=100)
    return Plan(problem, few, lengths, count=500)


PLANS: dict[str, dict[str, Plan]] = {
    "paper": {
        "mqmtar": _paper("mqmtar", 4, 512, 16, 390_625, 2e-4, 1, 2, 4, 16, 64, 256, 1024),
        "copy": _paper("copy", 2, 256, 16, 156_250, 1e-3, 1, 2, 4, 8, 16, 32, 64),
        "reverse": _paper("reverse", 6, 256, 8, 234_375, 4e-4, 1, 1.5, 2, 4, 8),
        "sort": _paper("sort", 2, 256, 8, 312_500, 4e-4, 1, 2, 4, 8),
        "count": _paper("count", 4, 256, 8, 78_125, 4e-4, 1, 2, 4, 8, 16),
        "2back": _paper("2back", 4, 256, 8, 78_125, 4e-4, 1, 2, 4, 8, 16),
        "flip-flop": _paper("flip-flop", 4, 256, 8, 78_125, 4e-4, 1, 2, 4, 8, 16, 32, 64),
    },
    "small": {
        "sort": _small(Sort(8), 2_000, 16, 32, 64, 128, 256),
        "2back": _small(TwoBack(8), 1_000, 16, 32, 64, 128, 256),
        "flip-flop": _small(FlipFlop(), 1_500, 16, 32, 64, 128, 256),
    },
    "minutes": {
        "copy": _small(Copy(8), 500, 16, 32),
        "sort": _small(Sort(8), 500, 16, 32, 64),
        "flip-flop": _small(FlipFlop(), 500, 16, 64, 256),
        "mqmtar": _small(AssociativeRecall(8, 16, 1), 500, 16, 32, 64),
    },
}


def main() -> int:
    """Train what has no file yet, print what each model gets right, and keep all of it if asked to."""
    options = _options()
    plans = PLANS[options.plan]
    unknown = [name for name in options.problem or () if name not in plans]
    if unknown:
        print(f"error: --problem: {options.plan} has {', '.join(plans)}; got {unknown[0]}", file=sys.stderr)
        return 1
    try:
        speed.available(options.device)
        options.runs.mkdir(parents=True, exist_ok=True)
        rows = grid(
            options, {name: plan for name, plan in plans.items() if not options.problem or name in options.problem}
        )
        print(table(rows))
        if options.keep and rows:
            print(f"wrote {kept(options, rows)}")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("runs", type=Path, help="folder with a file for each training")
    parser.add_argument("--problem", action="append", help="one of the plan; may be repeated; all by default")
    parser.add_argument("--attention", action="append", choices=ATTENTIONS, help=f"by default {', '.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=3, help="the number of trainings that differ in the seed")
    parser.add_argument("--steps", type=int, default=0, help="of each training, in the place of the plan's")
    parser.add_argument("--count", type=int, default=0, help="sequences of each test, in the place of the plan's")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no training after so many; 0 for no limit")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--machine", help="its name in the results; by default that of its processor or GPU")
    parser.add_argument("--keep", action="store_true", help="add a file to benchmarks/results")
    return parser.parse_args()


def grid(options: argparse.Namespace, plans: dict[str, Plan]) -> list[dict[str, Any]]:
    """Return the rows of all trainings of a grid that have a file, after training those that have none.

    Seeds are the outermost loop: what is stopped early has fewer seeds of everything.
    """
    began, rows = perf_counter(), []
    for seed in range(options.seeds):
        for name, plan in plans.items():
            for attention in options.attention or NAMES:
                setting = replace(plan.setting, attention=attention, seed=seed)
                setting = replace(setting, steps=options.steps or setting.steps)
                row = {"plan": options.plan, "problem": name, "sizes": asdict(plan.problem), **asdict(setting)}  # type: ignore[call-overload]
                file = options.runs / f"{options.plan}-{name}-{attention}-{seed}.json"
                if file.exists():
                    rows.append(_read(file, row))
                elif not options.minutes or perf_counter() - began < 60 * options.minutes:
                    print(f"{name}, {attention}, seed {seed}", flush=True)
                    count = options.count or plan.count
                    facts = {**machine.provenance(), "machine": machine.describe(options.device, options.machine)}
                    measured = run(plan.problem, setting, plan.lengths, count, options.device, _tell)
                    rows.append({**row, **facts, **measured})
                    with atomic_write(file) as temporary:
                        temporary.write_text(json.dumps(rows[-1]) + "\n", encoding="utf-8")
    return rows


def _tell(line: str) -> None:
    print(line, flush=True)


def _read(file: Path, row: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8"))
    for name, value in row.items():
        if found[name] != value:
            raise ValueError(f"{file} is of a training with {name} {found[name]}; got {value}: name another folder")
    return found


def kept(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Path:
    """Write a file of results with all rows; those of several dates or commits keep their own."""
    facts: dict[str, Any] = {"schema": 1, "task": "lengths", **machine.provenance()}
    facts |= {"machine": rows[0]["machine"], "plan": options.plan}
    for name in ("date", "commit"):
        values = sorted({row[name] for row in rows})
        # one training after the other: the last day
        facts[name] = values[-1] if name == "date" else ", ".join(values)
    of_all = ("plan", "machine", "recorded")
    texts = [json.dumps({name: value for name, value in row.items() if name not in of_all}) for row in rows]
    folder = archive.RESULTS / rows[0]["machine"]["name"] / "lengths"
    file = archive.free(folder, f"{facts['date']}-{rows[-1]['commit'] or 'unknown'}")
    file.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({**facts, "rows": []}, indent=1).rsplit("[]", 1)[0]
    file.write_text(head + "[\n  " + ",\n  ".join(texts) + "\n ]\n}\n", encoding="utf-8")
    return file


def table(rows: list[dict[str, Any]]) -> str:
    """Return the shares of whole targets that are right, means over seeds, a line for each problem and attention."""
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        for attention in dict.fromkeys(row["attention"] for row in rows if row["problem"] == name):
            some = [row for row in rows if (row["problem"], row["attention"]) == (name, attention)]
            cells = [
                f"{test['length']}: {mean(row['tests'][k]['exact'] for row in some):.1%}"
                for k, test in enumerate(some[0]["tests"])
            ]
            lines.append(f"{name:<10} {attention:<15} {len(some)} seeds  {'  '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
