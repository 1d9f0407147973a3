"""All results that were kept: a folder for each machine, in it one for each suite, in it a file for each run."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.record import Row, Run

RESULTS = Path(__file__).parent / "results"
Key = tuple[str, str, str, str, str, tuple[int, ...], str]


def new_file(run: Run) -> Path:
    """Return the file for a new run. An earlier file is never replaced."""
    return free(RESULTS / run.machine["name"] / run.suite, f"{run.date or 'unknown'}-{run.commit or 'unknown'}")


def free(folder: Path, stem: str) -> Path:
    """Return a file of a folder that does not exist yet, with a number if others begin with the stem."""
    names = [f"{stem}.json", *(f"{stem}-{count}.json" for count in range(2, 1000))]
    return next(folder / name for name in names if not (folder / name).exists())


def age(run: Run) -> tuple[str, str]:
    """Return what runs are ordered by: the date of the run, or else of its file, then the time of the file."""
    recorded = run.recorded or ""
    return run.date or recorded[:10], recorded


@cache
def runs(folder: Path = RESULTS) -> tuple[Run, ...]:
    """Return all runs of suites in a file or below a folder, oldest first."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
    found = [run for file in files if '"runs"' in _start(file) for run in record.load(file)]
    if not found:
        raise ValueError(f"{folder} has no results file")
    return tuple(sorted(found, key=age))


@cache
def latest(machine: str, suite: str) -> Run:
    """Return the newest run of a suite on a machine."""
    found = [run for run in runs() if (run.machine["name"], run.suite) == (machine, suite)]
    if not found:
        known = sorted({f"{run.machine['name']}/{run.suite}" for run in runs()})
        raise ValueError(f"no results of {machine}/{suite}; there are {', '.join(known)}")
    return found[-1]


def microseconds(row: Row) -> float | None:
    """Return the time of a row: of the device if it was measured, else of the call."""
    return row.device_us if row.device_us is not None else row.eager_us


def compare(old: Path, new: Path, percent: float = 10.0) -> tuple[int, list[str]]:
    """Return how many of polymax's rows got slower by more than `percent`, or failed, and lines that say which.

    old, new: results files, or folders of which the newest run of each machine and suite counts. Rows are compared by
    device times if both have one, else by eager times.
    """
    before, after = _rows(old), _rows(new)
    common = [key for key in before if key in after]
    if not common:
        raise ValueError(f"{old} and {new} have no row of polymax in common")
    lines = []
    for key in common:
        name = f"{key[1]}: {key[2]}, {key[3]}, {'x'.join(map(str, key[5]))} {key[6]}"
        first, second = before[key], after[key]
        if first.status == record.OK and second.status != record.OK:
            lines.append(f"{name}: {second.status.upper()}: {second.note}")
            continue
        one, other = microseconds(first), microseconds(second)
        if first.device_us is None or second.device_us is None:
            one, other = first.eager_us, second.eager_us
        if one and other and other > one * (1 + percent / 100):
            lines.append(f"{name}: {100 * (other / one - 1):.0f} % slower, {one:,.1f} us before, {other:,.1f} us after")
    slower = len(lines)
    missing = len(before) - len(common)
    lines.append(f"{slower} of {len(common)} rows are more than {percent:g} % slower")
    if missing:
        lines.append(f"{missing} rows of {old} are not in {new}")
    return slower, lines


def _rows(place: Path) -> dict[Key, Row]:
    newest = {(run.machine["name"], run.suite, run.device): run for run in runs(place.resolve())}
    return {
        (run.device, run.suite, row.case, row.timed, row.competitor, row.shape, row.dtype): row
        for run in newest.values()
        for row in run.rows
        if row.competitor.startswith("polymax")
    }


def trainings(machine: str, task: str, plan: str | None = None) -> dict[str, Any]:
    """Return the newest file of a task that is not a suite, such as a training; of a grid, that of a plan."""
    folder = RESULTS / machine / task
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    files = [kept for kept in files if plan in (None, kept.get("plan"))]
    if not files:
        raise ValueError(f"{folder} has no results file{f' of the plan {plan}' if plan else ''}")
    return max(files, key=lambda kept: (kept["date"] or kept["recorded"][:10], kept["recorded"]))


def plans(task: str) -> list[tuple[str, str]]:
    """Return the machine and the plan of all results of a grid."""
    found = set()
    for machine in machines():
        for file in (RESULTS / machine / task).glob("*.json"):
            if "plan" in (kept := json.loads(file.read_text(encoding="utf-8"))):
                found.add((machine, kept["plan"]))
    return sorted(found)


def folders(task: str) -> list[str]:
    """Return the folders MACHINE/TASK that have results of TASK, or of one plan of a grid, TASK:PLAN."""
    name, _, plan = task.partition(":")
    found = []
    for machine in machines():
        try:
            if any((RESULTS / machine / name).glob("*.json")) and (not plan or trainings(machine, name, plan)):
                found.append(f"{machine}/{name}")
        except ValueError:
            continue
    return found


def machines() -> Iterator[str]:
    """Yield the names of the machines."""
    yield from sorted(folder.name for folder in RESULTS.iterdir() if folder.is_dir())


def _start(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        return opened.read(40)
