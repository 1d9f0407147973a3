"""Grids of trainings: a file for each, so that a grid can be stopped, goes on, and can be shared between machines.

Each training writes `NAME.json` to a folder of runs, with its settings, date, commit, machine and versions. A grid
skips the trainings that have a file, and begins none after --minutes. `keep` makes one file of results of all of them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import archive, machine
from polymax_recipes.demo import speed
from polymax_recipes.outputs import atomic_write

# speeds of a training, which say nothing if other processes use the device
SPEEDS = ("tokens_per_second", "step_ms")
# facts that all rows of a file of results share
SHARED = ("plan", "machine", "recorded")


@dataclass(frozen=True)
class Job:
    """A training: the name of its file, what it is, and the function that runs it and returns what was measured."""

    name: str
    settings: dict[str, Any]
    run: Callable[[], dict[str, Any]]


def add_options(parser: argparse.ArgumentParser, plans: Sequence[str]) -> None:
    """Add the plan, the folder of runs, and the options that every grid has."""
    parser.add_argument("plan", choices=plans)
    parser.add_argument("runs", type=Path, help="folder with a file for each training")
    parser.add_argument("--seeds", type=int, default=3, help="the number of trainings that differ in the seed")
    parser.add_argument("--seed", type=int, action="append", help="one of them alone; may be repeated")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no training after so many; 0 for no limit")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--machine", help="its name in the results; by default that of its processor or GPU")
    parser.add_argument("--shared", action="store_true", help="other processes use the device: keep no speeds")
    parser.add_argument("--commit", help="of a tree that is a copy without its history")
    parser.add_argument("--keep", action="store_true", help="add a file to benchmarks/results")


def seeds(options: argparse.Namespace) -> Sequence[int]:
    """Return the seeds of the trainings."""
    return options.seed or range(options.seeds)


def rows(jobs: Sequence[Job], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of all trainings that have a file, after running those that have none."""
    options.runs.mkdir(parents=True, exist_ok=True)
    began, spent, ran = perf_counter(), 0.0, 0
    found: list[dict[str, Any]] = []
    for place, job in enumerate(jobs):
        file = options.runs / f"{job.name}.json"
        # as a file has them: tuples are lists
        settings = json.loads(json.dumps({"plan": options.plan, **job.settings}))
        if file.exists():
            found.append(_read(file, settings))
            continue
        spent = perf_counter() - began
        if options.minutes and spent >= 60 * options.minutes:
            continue
        left = f", about {spent / ran * (len(jobs) - place) / 60:.0f} minutes left" if ran else ""
        tell(f"{job.name}: training {place + 1} of {len(jobs)}, {spent / 60:.1f} minutes{left}")
        facts = {**machine.provenance(options.commit), "machine": machine.describe(options.device, options.machine)}
        row = {**settings, **facts, **job.run()}
        if options.shared:
            row |= {name: None for name in SPEEDS if name in row}
        ran += 1
        with atomic_write(file) as temporary:
            temporary.write_text(json.dumps(row) + "\n", encoding="utf-8")
        found.append(row)
    missing = len(jobs) - len(found)
    if missing:
        tell(f"{missing} of {len(jobs)} trainings have no file yet: the same command goes on with them")
    return found


def tell(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def keep(task: str, found: Sequence[dict[str, Any]]) -> Path:
    """Write a file of results with all rows; each keeps the date and the commit of its own training."""
    facts: dict[str, Any] = {"schema": 1, "task": task, **machine.provenance()}
    facts |= {"machine": found[0]["machine"], "plan": found[0]["plan"]}
    for name in ("date", "commit"):
        values = sorted({row[name] for row in found if row[name]})
        # one training after the other: the last day
        facts[name] = None if not values else values[-1] if name == "date" else ", ".join(values)
    texts = [json.dumps({name: value for name, value in row.items() if name not in SHARED}) for row in found]
    folder = archive.RESULTS / found[0]["machine"]["name"] / task
    file = archive.free(folder, f"{facts['date']}-{found[-1]['commit'] or 'unknown'}")
    file.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({**facts, "rows": []}, indent=1).rsplit("[]", 1)[0]
    file.write_text(head + "[\n  " + ",\n  ".join(texts) + "\n ]\n}\n", encoding="utf-8")
    return file


def main(
    task: str,
    options: argparse.Namespace,
    jobs: Callable[[argparse.Namespace], Iterable[Job]],
    table: Callable[[Sequence[dict[str, Any]]], str],
) -> int:
    """Run a grid, print its table, and add a file to the results if --keep was given; the exit code."""
    try:
        speed.available(options.device)
        found = rows([*jobs(options)], options)
        print(table(found))
        if options.keep and found:
            print(f"wrote {keep(task, found)}")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _read(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(f"{file} is of a training with {name} {found.get(name)}; got {value}: name another folder")
    return found
