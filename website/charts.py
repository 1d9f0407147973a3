"""Charts of the benchmarks as SVG, drawn from the results files: bars with names and numbers, in the page's colours."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any, NamedTuple

from benchmarks import archive

WIDTH, NAME, ROW = 720, 250, 22

ABOUT = {
    "simplex": ("Mappings", "Time of forward and backward, as a multiple of torch.softmax in the same run."),
    "structures": (
        "Structures",
        "Time with the gradient, in milliseconds; peers took turns with polymax in the same run.",
    ),
    "sparsemap": ("SparseMAP, trees, assignments", "Time in milliseconds."),
    "attention": ("Attention", "Time of forward and backward, in milliseconds, for heads x length x channels."),
    "linear_loss": ("Losses at vocabulary size", "Time of forward and backward, in milliseconds."),
    "series": ("Series", "Time in milliseconds of barycenters and nearest classes."),
    "latency": ("Latency", "Time of one small call, in microseconds, and of the import."),
    "throughput": ("Throughput", "Instances per second."),
    "memory": ("Memory", "The most memory beyond the scores, in megabytes."),
}


class Bar(NamedTuple):
    """A line of a chart."""

    name: str
    value: float
    text: str
    ours: bool


def page() -> str:
    """The Markdown of the page, with a chart for every suite of every machine."""
    parts = [
        "# Benchmarks\n",
        "Drawn from the files that `python -m benchmarks run SUITE` writes; [how speed is measured](measuring.md) says "
        "what is timed, and what a competitor must show before. Blue bars are polymax, grey ones others.\n",
    ]
    for machine in archive.machines():
        suites = {run.suite for run in archive.runs() if run.machine["name"] == machine}
        for suite in sorted(suites, key=_place):
            parts.append(section(asdict(archive.latest(machine, suite))))
    return "\n".join(parts)


def section(run: dict[str, Any]) -> str:
    """A suite on a machine: what was measured, then a chart for each case."""
    title, about = ABOUT.get(run["suite"], (run["suite"].replace("_", " ").capitalize(), "Time in milliseconds."))
    machine = run["machine"]
    where = machine["gpu"] if run["device"].startswith("cuda") else f"{machine['cpu']}, {machine['threads']} threads"
    versions = f"torch {machine['torch']}, polymax {machine['polymax']}"
    charts = []
    for name, rows in _by_case(run["rows"], run["suite"]):
        bars = [bar for row in rows if (bar := _bar(row, run["suite"])) is not None]
        if bars:
            charts.append(chart(name, bars))
    head = f"## {title}: {where}\n\n{about} {versions}{', ' + run['date'] if run['date'] else ''}.\n"
    return head + "\n" + "\n\n".join(charts) + "\n"


def _place(suite: str) -> int:
    """The place of a suite on the page; one without words of its own comes last."""
    return list(ABOUT).index(suite) if suite in ABOUT else len(ABOUT)


def _by_case(rows: Sequence[dict[str, Any]], suite: str) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    kept = [row for row in rows if row["status"] == "ok"]
    if suite == "simplex":
        # what all others are a multiple of
        kept = [row for row in kept if row["competitor"] != "torch.softmax"]
    if suite in ("simplex", "structures", "sparsemap", "attention", "series"):
        last = "forward+backward"
        both = {row["case"] for row in kept if row["timed"] == last}
        kept = [row for row in kept if row["timed"] == last or row["case"] not in both]
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in kept:
        group = " x ".join(map(str, row["shape"])) + f", {row['dtype']}" if suite == "simplex" else row["case"]
        cases.setdefault(group, []).append(row)
    return cases.items()


def _bar(row: dict[str, Any], suite: str) -> Bar | None:
    size = " x ".join(map(str, row["shape"]))
    ours = row["competitor"].startswith("polymax")
    if suite == "simplex":
        name = f"{row['case']}{'' if ours else ' · ' + row['competitor']}"
        return None if row["ratio"] is None else Bar(name, row["ratio"], f"{row['ratio']:.2f}", ours)
    name = f"{row['competitor']} · {size}" if size else row["competitor"]
    if suite == "throughput":
        value = row["per_second"]
        return None if value is None else Bar(name, value, f"{value:,.0f}", ours)
    if suite == "memory":
        value = row["extra_bytes"]
        return None if value is None else Bar(name, value / 1e6, f"{value / 1e6:.2f}", ours)
    value = row["device_us"] if row["device_us"] is not None else row["eager_us"]
    if value is None:
        return None
    if suite == "latency":
        return Bar(name, value, f"{value:,.0f} µs", ours)
    return Bar(name, value / 1e3, f"{value / 1e3:.2f} ms", ours)


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Bars below a title; screen readers get the same as a list."""
    most = max(bar.value for bar in bars) or 1.0
    height = ROW * len(bars) + 8
    said = "; ".join(f"{bar.name} {bar.text}" for bar in bars)
    lines = []
    for place, bar in enumerate(bars):
        y = 4 + ROW * place
        width = max(1.0, (WIDTH - NAME - 90) * bar.value / most)
        kind = "ours" if bar.ours else "theirs"
        lines.append(f'<text x="{NAME - 8}" y="{y + 15}" text-anchor="end">{escape(bar.name[:38])}</text>')
        lines.append(f'<rect class="{kind}" x="{NAME}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" rx="2"/>')
        lines.append(f'<text x="{NAME + width + 6:.1f}" y="{y + 15}">{escape(bar.text)}</text>')
    label = escape(f"{title}: {said}", quote=True)
    body = "".join(lines)
    return (
        f'<figure class="bench"><figcaption>{escape(title)}</figcaption>'
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}">{body}</svg></figure>'
    )
