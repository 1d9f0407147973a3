"""Benchmarks over time: polymax's time of each case in every run that was kept, as small charts."""

from collections.abc import Sequence
from html import escape

from benchmarks import archive
from benchmarks.record import OK, Row, Run

WIDTH, HEIGHT, LEFT, TOP = 300, 96, 66, 18
Series = list[tuple[Run, float]]


def page() -> str:
    """Return the Markdown of the page."""
    parts = [
        "# Benchmarks over time\n",
        "Each chart is one case of a suite on one machine, and each point one run that was kept, oldest at the left. "
        "Hover a point for its date and its commit. Runs that kept no date have that of the file. "
        "`python -m benchmarks compare OLD NEW` lists what got slower.\n",
    ]
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in archive.runs():
        groups.setdefault((run.machine["name"], run.suite), []).append(run)
    single = []
    for (machine, suite), runs in sorted(groups.items()):
        if len(runs) == 1:
            single.append(f"`{machine}/{suite}` ({archive.age(runs[0])[0]})")
            continue
        charts = [chart(name, series) for name, series in histories(runs).items() if len(series) > 1]
        if charts:
            parts.append(f"## {suite.replace('_', ' ').capitalize()} on {machine}\n")
            parts.append(f'<div class="history">{"".join(charts)}</div>\n')
    parts.append("## With one run so far\n\n" + ", ".join(single) + ".\n")
    return "\n".join(parts)


def histories(runs: Sequence[Run]) -> dict[str, Series]:
    """Return polymax's milliseconds in each run, by case, shape and pass."""
    found: dict[str, Series] = {}
    for run in runs:
        both = {(row.case, row.shape) for row in run.rows if row.timed == "forward+backward"}
        for row in run.rows:
            if row.competitor != "polymax" or row.status != OK or row.dtype not in ("float32", "bfloat16"):
                continue
            # the pass with the gradient stands for both
            if row.timed == "forward" and (row.case, row.shape) in both:
                continue
            value = archive.microseconds(row)
            if value is not None:
                found.setdefault(_name(row), []).append((run, value / 1e3))
    return found


def _name(row: Row) -> str:
    return f"{row.case} {' x '.join(map(str, row.shape))}".strip()


def chart(name: str, series: Series) -> str:
    """Return one small chart as SVG; screen readers get its numbers."""
    values = [value for _, value in series]
    most = max(values) * 1.1
    step = (WIDTH - LEFT - 14) / (len(series) - 1)
    points = [(LEFT + step * k, TOP + (HEIGHT - TOP - 18) * (1 - value / most)) for k, value in enumerate(values)]
    dots = "".join(
        f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{_when(run)}: {_time(value)}</title></circle>'
        for (x, y), (run, value) in zip(points, series)
    )
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    said = escape(f"{name}: " + ", ".join(f"{_when(run)} {_time(value)}" for run, value in series), quote=True)
    first, last = archive.age(series[0][0])[0], archive.age(series[-1][0])[0]
    return (
        f'<figure class="bench"><figcaption>{escape(name)}</figcaption>'
        f'<svg role="img" aria-label="{said}" viewBox="0 0 {WIDTH} {HEIGHT}"><path class="line" d="M{line}"/>{dots}'
        f'<text x="{LEFT - 8}" y="{points[-1][1] + 4:.1f}" text-anchor="end">{_time(values[-1])}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 2}">{first[5:]}</text>'
        f'<text x="{WIDTH - 14}" y="{HEIGHT - 2}" text-anchor="end">{last[5:]}</text></svg></figure>'
    )


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds >= 1 else f"{1e3 * milliseconds:.3g} µs"


def _when(run: Run) -> str:
    return f"{archive.age(run)[0]}, commit {run.commit or 'unknown'}"
