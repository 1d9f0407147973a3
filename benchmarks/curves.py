"""Curves of trainings as SVG: the mean over seeds as a line, the least and the largest as a band."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean
from typing import Any

from benchmarks import archive
from benchmarks.grid_tables import comparable

STYLE = (
    ".c0{stroke:#2f63c4;fill:#2f63c4}.c1{stroke:#c4552f;fill:#c4552f}.c2{stroke:#2f8f5b;fill:#2f8f5b}"
    ".c3{stroke:#8a5bc4;fill:#8a5bc4}.c4{stroke:#b08a1e;fill:#b08a1e}.c5{stroke:#5b6b7b;fill:#5b6b7b}"
    ".c6{stroke:#c43f86;fill:#c43f86}.c7{stroke:#3aa0b5;fill:#3aa0b5}"
    "path.line{fill:none;stroke-width:2.5}.band{stroke:none;opacity:.18}text[class^=c]{stroke:none}"
)
COLOURS = 8
WIDTH, HEIGHT, LEFT, TOP, WIDE, HIGH = 420, 300, 52, 56, 250, 190


@dataclass(frozen=True)
class Point:
    """A place on the axis, and the values of all seeds there."""

    x: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Axes:
    """Titles, marks of both axes by their places, and how a value is written for those who do not see the picture."""

    title: str
    below: str
    x: dict[float, str]
    y: dict[float, str]
    spoken: Callable[[float], str]


def panel(axes: Axes, series: Mapping[str, Sequence[Point]]) -> tuple[str, str]:
    """Return a panel with a line and a band for each series, and the same in words."""
    left, right = min(axes.x), max(axes.x)
    low, high = min(axes.y), max(axes.y)

    def place(x: float, y: float) -> str:
        across = LEFT + WIDE * (x - left) / ((right - left) or 1)
        return f"{across:.1f} {TOP + HIGH * (1 - (min(max(y, low), high) - low) / ((high - low) or 1)):.1f}"

    parts = [
        f'<text class="title" x="8" y="20">{escape(axes.title)}</text>',
        f'<path class="axis" d="M{LEFT} {TOP}V{TOP + HIGH}H{LEFT + WIDE}"/>',
        f'<text class="small" x="{LEFT}" y="{TOP + HIGH + 40}">{escape(axes.below)}</text>',
    ]
    for x, text in axes.x.items():
        across = place(x, low).split()[0]
        parts.append(f'<text class="small" x="{across}" y="{TOP + HIGH + 20}" text-anchor="middle">{text}</text>')
    for y, text in axes.y.items():
        down = float(place(left, y).split()[1])
        parts.append(f'<text class="small" x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{text}</text>')
    said = []
    for number, (name, points) in enumerate(series.items()):
        colour = f"c{number % COLOURS}"
        upper = [place(point.x, max(point.values)) for point in points]
        lower = [place(point.x, min(point.values)) for point in reversed(points)]
        parts.append(f'<path class="band {colour}" d="M{"L".join([*upper, *lower])}Z"/>')
        middle = "L".join(place(point.x, mean(point.values)) for point in points)
        parts.append(f'<path class="line {colour}" d="M{middle}"/>')
        y = TOP + 16 + 20 * number
        parts.append(f'<text class="{colour}" x="{LEFT + WIDE + 12}" y="{y}">{escape(name)}</text>')
        last = points[-1]
        said.append(f"{name}: {axes.spoken(mean(last.values))} at the right")
    return "".join(parts), f"{axes.title}: {'; '.join(said)}."


def contexts(machine: str, plan: str, context: int, over: str) -> tuple[str, str]:
    """Return a panel with the held-out loss of each attention over its training.

    over: the axis, seconds or step; trainings that were limited by it, and those that can be compared by it
    """
    kept = archive.trainings(machine, "contexts", plan)
    every = [row for row in kept["rows"] if row["context"] == context]
    limited = [row for row in every if row["budget"].startswith(over)]
    rows = (comparable(every) or limited) if over == "step" else limited
    series = {name: _over(over, some) for name, some in _by(rows, "attention").items()}
    most = max(point.x for points in series.values() for point in points)
    values = [value for points in series.values() for point in points for value in point.values]
    # the first losses, of models that have learned little, are above the picture
    high = min(max(values), 2 * min(values)) if rows[0].get("constant") else max(values)
    first, last = 0.5 * int(2 * min(values)), 0.5 * (int(2 * high) + 1)
    marks = {first + k * (last - first) / 4: f"{first + k * (last - first) / 4:.3g}" for k in range(5)}
    seeds = max(len(some) for some in _by(rows, "attention").values())
    unit = "steps" if over == "step" else "seconds"
    axes = Axes(
        f"Held-out bits per byte{'' if over == 'step' else ' by time'}, context {context:,}",
        f"{unit}; {f'the band is all of {seeds} seeds' if seeds > 1 else 'one seed'}",
        {k * most / 4: f"{k * most / 4:,.0f}" for k in range(5)},
        marks,
        lambda value: f"{value:.2f} bits per byte",
    )
    return panel(axes, series)


def lengths(machine: str, plan: str, problem: str) -> tuple[str, str]:
    """Return a panel with the share of right tokens of each attention over the length of the source."""
    kept = archive.trainings(machine, "lengths", plan)
    rows = [row for row in kept["rows"] if row["problem"] == problem]
    at = [test["length"] for test in rows[0]["tests"]]
    # a target of one symbol: its end is no achievement
    measure = "exact" if problem == "flip-flop" else "tokens"
    grouped = _by(rows, "attention")
    series = {
        name: [Point(k, tuple(row["tests"][k][measure] for row in some)) for k in range(len(at))]
        for name, some in grouped.items()
    }
    axes = Axes(
        f"{problem}: right {'targets' if measure == 'exact' else 'tokens'} by length",
        f"tokens of the source; trained up to {rows[0]['longest']}; the band is all seeds",
        {k: f"{length:,}" for k, length in enumerate(at)},
        {share / 4: f"{25 * share} %" for share in range(5)},
        lambda value: f"{100 * value:.0f} %",
    )
    return panel(axes, series)


def charts() -> dict[str, list[tuple[str, str]]]:
    """Return the panels of each picture by its file name, of all machines and plans that have results."""
    found: dict[str, list[tuple[str, str]]] = {}
    for machine, plan in archive.plans("contexts"):
        rows = archive.trainings(machine, "contexts", plan)["rows"]
        sizes = sorted({row["context"] for row in rows if row["budget"] == "steps" and not row.get("constant")})
        if sizes:
            found[f"contexts-{machine}-{plan}.svg"] = [contexts(machine, plan, size, "step") for size in sizes]
        # with a learning rate that does not depend on the seconds, steps can be compared, too
        for size in sorted({row["context"] for row in rows if row.get("constant")}):
            timed = any(row["budget"] == "seconds" for row in rows if row["context"] == size)
            axes = ("seconds", "step") if timed else ("step",)
            found[f"contexts-{machine}-{plan}-{size}.svg"] = [contexts(machine, plan, size, over) for over in axes]
    for machine, plan in archive.plans("lengths"):
        problems = dict.fromkeys(row["problem"] for row in archive.trainings(machine, "lengths", plan)["rows"])
        found[f"lengths-{machine}-{plan}.svg"] = [lengths(machine, plan, problem) for problem in problems]
    return found


def _over(axis: str, rows: Sequence[dict[str, Any]]) -> list[Point]:
    count = min(len(row["curve"]) for row in rows)
    return [
        Point(mean(row["curve"][k][axis] for row in rows), tuple(row["curve"][k]["held_out"] for row in rows))
        for k in range(count)
    ]


def _by(rows: Sequence[dict[str, Any]], name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found
