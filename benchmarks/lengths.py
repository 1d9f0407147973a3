"""Length generalisation: models that learn on short sequences, by attention and seed, and what they get right on long.

    python -m benchmarks.lengths small runs --machine laptop --keep
    python -m benchmarks.lengths paper runs --device cuda --problem sort --attention asentmax --seeds 3

A plan says sizes: `small` takes about a quarter of an hour on one core, `paper` has those of Vasylenko et al. 2025,
which take GPUs days, and `minutes` has the same models and lengths for few steps: minutes of a GPU, if a process for
each problem and attention runs beside the others. On a GPU matrices are multiplied in TF32. Each training writes a file
to the folder of runs; the command goes on with those that have none, so that it can be stopped, and started on several
machines. --keep adds what is finished to benchmarks/results.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean
from typing import Any

import torch

from benchmarks import grid
from polymax_recipes.lengths.learn import Setting, run
from polymax_recipes.lengths.model import ATTENTIONS
from polymax_recipes.lengths.problems import PROBLEMS, FlipFlop, Problem, Sort, TwoBack

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


def _few(plan: Plan, steps: int) -> Plan:
    """Return a plan with few steps of smaller batches, a learning rate for them, and lengths up to 16 times as long."""
    setting = replace(plan.setting, steps=steps, batch_size=64, lr=1e-3, warmup=200)
    some = tuple(one for one in plan.lengths if one <= 16 * setting.longest)
    return replace(plan, setting=setting, lengths=some, count=500)


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
}
PLANS["minutes"] = {
    "sort": _few(PLANS["paper"]["sort"], 2_000),
    "2back": _few(PLANS["paper"]["2back"], 2_000),
    "flip-flop": _few(PLANS["paper"]["flip-flop"], 2_000),
    "copy": _few(PLANS["paper"]["copy"], 2_000),
}


def main() -> int:
    """Train what has no file yet, print what each model gets right, and keep all of it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__)
    grid.add_options(parser, [*PLANS])
    parser.add_argument("--problem", action="append", help="one of the plan; may be repeated; all by default")
    parser.add_argument("--attention", action="append", choices=ATTENTIONS, help=f"by default {', '.join(NAMES)}")
    parser.add_argument("--steps", type=int, default=0, help="of each training, in the place of the plan's")
    parser.add_argument("--count", type=int, default=0, help="sequences of each test, in the place of the plan's")
    options = parser.parse_args()
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")
    return grid.main("lengths", options, jobs, table)


def jobs(options: argparse.Namespace) -> Iterator[grid.Job]:
    """Yield the trainings. Seeds are the outermost loop: what is stopped early has fewer seeds of everything."""
    plans = PLANS[options.plan]
    unknown = [name for name in options.problem or () if name not in plans]
    if unknown:
        raise ValueError(f"--problem: {options.plan} has {', '.join(plans)}; got {unknown[0]}")
    for seed in grid.seeds(options):
        for name, plan in plans.items():
            for attention in (options.attention or NAMES) if name in (options.problem or plans) else ():
                setting = replace(plan.setting, attention=attention, seed=seed)
                setting = replace(setting, steps=options.steps or setting.steps)
                facts = {"problem": name, "sizes": asdict(plan.problem), **asdict(setting)}  # type: ignore[call-overload]
                facts["matrices"] = "TF32" if options.device == "cuda" else "float32"
                count = options.count or plan.count
                work = partial(run, plan.problem, setting, plan.lengths, count, options.device, grid.tell)
                yield grid.Job(f"{options.plan}-{name}-{attention}-{seed}", facts, work)


def table(rows: Sequence[dict[str, Any]]) -> str:
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
