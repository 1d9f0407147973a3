"""Tables as Markdown, and the line below them that says where the figures are from."""

from collections.abc import Sequence
from typing import Any

from benchmarks.record import Run

MACHINES = {
    "h200": "NVIDIA H200",
    "epyc-2core": "two cores of an AMD EPYC",
    "epyc-1core": "one thread of an AMD EPYC that did other work, too",
    "xeon": "two cores of an Intel Xeon",
    "xeon-2core": "one thread of an Intel Xeon that did other work, too",
}


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def source(kept: Run | dict[str, Any], place: str) -> str:
    """Return the line below a table: machine, versions, date, commit and folder of the results."""
    facts = kept.machine if isinstance(kept, Run) else kept["machine"]
    date, commit, recorded = (
        (kept.date, kept.commit, kept.recorded)
        if isinstance(kept, Run)
        else (kept["date"], kept["commit"], kept["recorded"])
    )
    when = f"measured {date}" if date else f"date unknown, recorded {(recorded or 'unknown')[:10]}"
    torch = f", torch {facts['torch'].split('+')[0]}" if facts.get("torch") else ""
    where = MACHINES.get(facts["name"], facts["gpu"] or facts["cpu"])
    if isinstance(kept, dict):
        where = facts["gpu"] or MACHINES.get(facts["name"], facts["cpu"])
    return f"{where[0].upper()}{where[1:]}{torch}, {when}, commit {commit or 'unknown'}: `benchmarks/results/{place}`."
