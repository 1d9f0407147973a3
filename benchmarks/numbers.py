"""Figures in documents: each stands between marks that say which result it is, and is written from the results files.

    <!-- number: MACHINE/SUITE; CASE; SHAPE; COMPETITOR; FIELD; FORMAT -->0.64<!-- end -->
    <!-- table: NAME -->
    ...
    <!-- end -->

FIELD is a field of a row, or ms or MiB; FORMAT is one of Python's, such as .2f. A seventh part names the pass, for
example forward; without it, the row with the gradient counts. SUITE may be contexts:PLAN, a grid of trainings: the
parts are then the attention, the context, and seconds or steps, what limited the training; FIELD@STEP is of its curve.
Tables are functions of benchmarks/tables.py, and words after a table's name are its arguments.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from benchmarks import archive, pictures, tables
from benchmarks.record import Row

ROOT = Path(__file__).parents[1]
# not in code, which is indented by four
MARK = re.compile(
    r"(?<! {4})(<!-- (number|table): ((?:(?!-->).)*?) -->)((?:(?!<!-- end -->).)*?)(<!-- end -->)", re.DOTALL
)


def documents() -> Iterator[Path]:
    """Yield the documents that may have figures."""
    yield ROOT / "README.md"
    yield ROOT / "benchmarks" / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def fill(check: bool = False) -> list[str]:
    """Write all figures and charts; return the files that changed, or, with `check`, those that would."""
    made = {file: filled(file.read_text(encoding="utf-8"), file) for file in documents()}
    made |= {ROOT / "docs" / "pictures" / name: text for name, text in pictures.charts().items()}
    changed = []
    for file, text in made.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            changed.append(file.relative_to(ROOT).as_posix())
            if not check:
                file.write_text(text, encoding="utf-8")
    return changed


def filled(text: str, file: Path = ROOT / "README.md") -> str:
    """Return a document with the text between its marks made from the results."""

    def made(found: re.Match[str]) -> str:
        try:
            inside = number(found[3]) if found[2] == "number" else f"\n{tables.table(found[3])}\n"
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, {found[1]}: {error}") from error
        return f"{found[1]}{inside}{found[5]}"

    return MARK.sub(made, text)


def number(query: str) -> str:
    """Return one figure as text.

    Example:
        >>> number("h200/attention; gaussian scores; 16x65536x64; polymax; ratio; .1f")
        '0.6'
    """
    parts = [part.strip() for part in query.split(";")]
    if len(parts) not in (6, 7):
        raise ValueError(f"a number has six or seven parts, separated by semicolons; got {query!r}")
    place, case, shape, competitor, field, form, *timed = parts
    if ":" in place:
        return format(trained(place, case, int(shape), competitor, field), form)
    row = find(place, case, shape, competitor, *timed)
    if field == "ms":
        found = archive.microseconds(row)
        value = None if found is None else found / 1e3
    elif field == "MiB":
        value = None if row.extra_bytes is None else row.extra_bytes / 2**20
    else:
        value = getattr(row, field, None)
    if value is None:
        raise ValueError(f"the row has no {field}")
    return format(value, form)


def trained(place: str, attention: str, context: int, budget: str, field: str) -> float:
    """Return a figure of the newest trainings of MACHINE/contexts:PLAN, the mean over seeds."""
    machine, _, task = place.partition("/")
    name, _, plan = task.partition(":")
    asked = attention, context, budget
    rows = [
        row
        for row in archive.trainings(machine, name, plan)["rows"]
        if (row["attention"], row["context"], row["budget"]) == asked
    ]
    if not rows:
        raise ValueError(f"{place} has no training of {attention}, {context}, {budget}")
    of_row, _, step = field.partition("@")
    if step:
        return mean(part[of_row] for row in rows for part in row["curve"] if part["step"] == int(step))
    return mean(row[of_row] for row in rows)


def find(place: str, case: str, shape: str, competitor: str, timed: str | None = None) -> Row:
    """Return the row of the newest run of MACHINE/SUITE. Without `timed` it is the one with the gradient."""
    machine, _, suite = place.partition("/")
    rows = [
        row
        for row in archive.latest(machine, suite).rows
        if (row.case, "x".join(map(str, row.shape)), row.competitor) == (case, shape, competitor)
        and timed in (None, row.timed)
        and row.status == "ok"
    ]
    if not rows:
        raise ValueError(f"{place} has no row {case!r}, {shape}, {competitor}, {timed or 'of any pass'}")
    return rows[-1]
