"""Results: rows, the file that keeps them, and the table that shows them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from polymax_recipes.demo.speed import BUSY

SCHEMA = 1
OK, PARITY_FAILED, ERROR = "ok", "parity failed", "error"


@dataclass(frozen=True)
class Bar:
    """The most, or the least, that a column of a row should be."""

    limit: float
    column: str = "ratio"
    least: bool = False

    def holds(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.limit if self.least else value <= self.limit

    def __str__(self) -> str:
        text = f"{self.limit:.3g}" if self.column == "ratio" else _time(self.limit)
        text = f"{self.limit / 2**20:.0f}MiB" if self.column == "extra_bytes" else text
        return f"≥{text}" if self.least else text


@dataclass(frozen=True)
class Row:
    """One competitor on one problem. Times are in microseconds, and absent unless the status is "ok".

    `ratio` is to the case's baseline, of `ratio_of`: device times where both have one, else eager times. That of
    `extra_bytes`, the most memory in use beyond the inputs, is to the size of the inputs. `per_second` counts
    instances. A bar is the most that `bar_of` should be, or, if `bar_least`, the least.
    """

    case: str
    timed: str
    competitor: str
    shape: tuple[int, ...]
    dtype: str
    status: str = OK
    note: str = ""
    eager_us: float | None = None
    eager_spread_us: float | None = None
    device_us: float | None = None
    device_spread_us: float | None = None
    extra_bytes: int | None = None
    per_second: float | None = None
    ratio: float | None = None
    ratio_of: str | None = None
    bar: float | None = None
    bar_of: str | None = None
    bar_least: bool = False
    met: bool | None = None
    parity: dict[str, Any] | None = None
    others: float | None = None


@dataclass(frozen=True)
class Absent:
    """A peer that did not take part, and why."""

    peer: str
    reason: str


@dataclass(frozen=True)
class Run:
    """One suite on one device of one machine.

    date: the day it was measured; commit: the measured tree, with "-dirty" if it had changes; recorded: when its file
    was written, or, for files older than this field, committed (UTC). None where it is not known.
    """

    suite: str
    device: str
    quick: bool
    date: str | None
    commit: str | None
    recorded: str | None
    machine: dict[str, Any]
    absent: tuple[Absent, ...]
    rows: tuple[Row, ...]


def save(file: Path, run: Run) -> None:
    """Write a run, in the place of an earlier one of the same suite on the same device."""
    kept = [r for r in load(file) if (r.suite, r.device) != (run.suite, run.device)] if file.exists() else []
    write(file, [asdict(r) for r in sorted([*kept, run], key=lambda r: (r.suite, r.device))])


def write(file: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Write runs as JSON, a row of results a line."""
    texts = []
    for run in runs:
        facts = json.dumps({**run, "rows": []}, indent=1, allow_nan=False).rsplit("[]", 1)[0]
        rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in run["rows"])
        texts.append(f"{facts}[\n{rows}\n ]\n}}")
    file.parent.mkdir(parents=True, exist_ok=True)
    text = ",\n".join(texts)
    file.write_text(f'{{"schema": {SCHEMA}, "runs": [\n{text}\n]}}\n', encoding="utf-8")


def load(file: Path) -> list[Run]:
    """The runs of a file; a ValueError says what is wrong with it."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{file} is not a results file of schema {SCHEMA}")
    return [_run(stored) for stored in document["runs"]]


def heading(run: Run) -> str:
    """The machine and the absent peers: what to know before the table."""
    facts = run.machine
    where = f"{facts['gpu']} ({facts['cpu']})" if facts["gpu"] else f"{facts['cpu']}"
    versions = ", ".join(
        f"{package} {facts[package]}" for package in ("polymax", "torch", "triton", "numba") if facts[package]
    )
    lines = [
        f"suite {run.suite} on {run.device}{', quick: times mean nothing' if run.quick else ''}",
        f"machine {facts['name']}: {where}, {facts['threads']} of {facts['cores']} threads, {versions}",
    ]
    lines.append(f"date {run.date or 'unknown'}, commit {run.commit or 'unknown'}")
    return "\n".join(lines + [absence(absent) for absent in run.absent])


def absence(absent: Absent) -> str:
    return f"ABSENT {absent.peer}: {absent.reason}"


def columns() -> str:
    numbers = ("eager", "device", "memory", "rate", "ratio", "bar", "met", "parity")
    return _columns("case", "timed", "shape", "dtype", "competitor", *numbers)


def line(row: Row) -> str:
    """A row of the table. Without parity there is no speed to show."""
    shape = "x".join(map(str, row.shape))
    start = (row.case, row.timed, shape, row.dtype, row.competitor)
    if row.status != OK:
        return f"{_columns(*start).rstrip()}  {row.status.upper()}: {row.note}"
    bar = "" if row.bar is None else str(Bar(row.bar, row.bar_of or "ratio", row.bar_least))
    text = _columns(
        *start,
        _spread(row.eager_us, row.eager_spread_us),
        _spread(row.device_us, row.device_spread_us),
        "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:.3g}MiB",
        "" if row.per_second is None else _rate(row.per_second),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        bar,
        "" if row.met is None else "yes" if row.met else "NO",
        "" if row.parity is None else f"{max(row.parity['forward'], row.parity.get('gradient', 0)):.0e}",
    ).rstrip()
    return f"{text}  {row.note}" if row.note else text


def summary(rows: Sequence[Row]) -> str:
    """How many bars were met, who was refused, and whether times can be trusted."""
    barred = [row for row in rows if row.met is not None]
    refused = [row for row in rows if row.status != OK]
    lines = [f"bars met: {sum(row.met is True for row in barred)} of {len(barred)}"]
    lines += [
        f"{row.status}: {row.competitor} in {row.case}, {'x'.join(map(str, row.shape))} {row.dtype}"
        for row in _once(refused)
    ]
    share = max((row.others for row in rows if row.others is not None), default=0.0)
    if share >= BUSY:
        lines.append(f"CAUTION: other processes used up to {share:.0%} of the processors: times are rough")
    return "\n".join(lines)


def table(run: Run) -> str:
    return "\n".join([heading(run), "", columns(), *map(line, run.rows), "", summary(run.rows)])


def _run(stored: dict[str, Any]) -> Run:
    rows = tuple(Row(**{**row, "shape": tuple(row["shape"])}) for row in stored["rows"])
    absent = tuple(Absent(**peer) for peer in stored["absent"])
    own = {f.name: stored[f.name] for f in fields(Run)}
    return Run(**{**own, "rows": rows, "absent": absent})


def _once(rows: Iterable[Row]) -> list[Row]:
    """One row for each competitor and problem: both passes share a parity."""
    return list({(row.case, row.competitor, row.shape, row.dtype): row for row in rows}.values())


def _columns(*cells: str) -> str:
    widths = (20, 16, 12, 8, 29, 12, 12, 9, 7, 6, 6, 3, 6)
    left = 5
    padded = [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    return " ".join(padded)


def _spread(middle: float | None, spread: float | None) -> str:
    if middle is None or spread is None:
        return ""
    return f"{_time(middle)} ±{100 * spread / middle:.0f}%"


def _time(microseconds: float) -> str:
    if microseconds < 1e3:
        return f"{microseconds:.3g}us"
    return f"{microseconds / 1e3:.3g}ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g}s"


def _rate(per_second: float) -> str:
    if per_second < 1e3:
        return f"{per_second:.3g}/s"
    return f"{per_second / 1e3:.3g}k/s" if per_second < 1e6 else f"{per_second / 1e6:.3g}M/s"
