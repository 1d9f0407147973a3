"""Measures of runs over their epochs, as log.csv has them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polymax_recipes.training.digests import atomic_write_with_digest, check_digest
from polymax_recipes.training.run import Run, check_run, refused


def write_log(file: Path, rows: Sequence[dict[str, float]]) -> None:
    """Write a row for each epoch, as CSV."""
    with atomic_write_with_digest(file) as temporary, temporary.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def read_log(run: Run) -> list[dict[str, str]]:
    """Return the rows of the log of a run, one for each epoch; [] without a log."""
    if not run.log.exists():
        return []
    check_digest(run.log)
    with refused(run.log, "the log of a run"), run.log.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, strict=True))


def measure_of_run(run: Path, measure: str) -> tuple[list[int], list[float]]:
    """The epochs of a run, and a measure after each: a column of its log, also without its prefix `dev_`."""
    log = check_run(Run(run)).log
    if not log.exists():
        raise FileNotFoundError(f"{log} is missing: no epoch of this run was finished")
    rows = read_log(Run(run))
    columns = [str(name) for name in rows[0]] if rows else []
    name = measure if measure in columns else f"dev_{measure}"
    if name not in columns:
        raise ValueError(f"--measure: {log} has no column {measure}; there are {', '.join(columns)}")
    with refused(log, "the log of a run"):
        return [int(row["epoch"]) for row in rows], [float(row[name]) for row in rows]


def plot_measure(runs: Sequence[Path], measure: str, *, ax: Any = None) -> Any:
    """Draw a measure over the epochs of runs, a line for each. Returns the axes."""
    from polymax.plot.canvas import new_axes
    from polymax.plot.words import write_legend

    found = [measure_of_run(run, measure) for run in runs]
    ax = new_axes(5.2, 3.4) if ax is None else ax
    for run, (epochs, values) in zip(runs, found):
        ax.plot(epochs, values, marker="o", markersize=3, label=str(run))
    ax.set(xlabel="epoch", ylabel=measure.replace("_", " "))
    ax.yaxis.label.set(parse_math=False, usetex=False)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e5e5e5", linewidth=0.6)
    write_legend(ax, ax.lines[-len(runs) :], runs, frameon=False)
    return ax
