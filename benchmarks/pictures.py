"""Pictures of README and home page as SVG, drawn from the results: `python -m benchmarks numbers` writes them.

Colours follow the reader's light or dark mode.
"""

from collections.abc import Sequence
from html import escape

import torch

import polymax as pm
from benchmarks import archive, curves

STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:14px}.small{font-size:12px}"
    ".axis{stroke:#8c959f;fill:none}.soft{stroke:#8c959f;stroke-width:2;stroke-dasharray:6 4;fill:none}"
    ".ours{stroke:#2f63c4;stroke-width:2.5;fill:none}.dot{fill:#2f63c4}.bar{fill:#2f63c4}.zero{fill:#d0d7de}"
    ".label{fill:#2f63c4;font-weight:600}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.ours{stroke:#7fa8f5}.dot,.bar,.label{fill:#7fa8f5}"
    ".zero{fill:#484f58}}"
)
WORDS = ("the", "old", "man", "sold", "his", "boat", "yesterday")
# scores of the words for one query, chosen by hand: the picture shows mappings, not a model
SCORES = (-0.4, 1.1, 1.3, 1.9, -0.2, 1.0, 0.0)


def charts() -> dict[str, str]:
    """Return the pictures by their file names in docs/pictures."""
    time, sentence = attention_time(), one_sentence()
    both = time[0] + f'<g transform="translate(450 0)">{sentence[0]}</g>'
    return {
        "attention-time.svg": _svg(420, 300, *time),
        "one-sentence.svg": _svg(420, 300, *sentence),
        "promise.svg": _svg(870, 300, both, f"{time[1]} {sentence[1]}"),
        **{name: _row(panels) for name, panels in curves.charts().items()},
    }


def attention_time(machine: str = "h200") -> tuple[str, str]:
    """Return a panel, time of entmax attention over length as a multiple of softmax's, and the same in words."""
    run = archive.latest(machine, "attention")
    rows = [
        row
        for row in run.rows
        if row.case == "gaussian scores" and row.competitor == "polymax" and row.shape[-1] == 64 and row.ratio
    ]
    rows.sort(key=lambda row: row.shape[1])
    left, top, width, height, most = 44, 64, 350, 180, 1.5
    lengths = [row.shape[1] for row in rows]
    step = width / max(1, len(rows) - 1) * 0.8

    def y(ratio: float) -> float:
        return top + height * (1 - ratio / most)

    points = [(left + 35 + step * place, y(row.ratio or 0.0)) for place, row in enumerate(rows)]
    parts = [
        '<text class="title" x="8" y="20">Time of entmax attention / softmax attention</text>',
        f'<text class="small" x="8" y="40">{escape(run.machine["gpu"])}, {rows[0].dtype}, forward and backward</text>',
        f'<path class="axis" d="M{left} {top}V{top + height}H{left + width}"/>',
    ]
    for tick in (0, 0.5, 1.0, 1.5):
        parts.append(f'<text class="small" x="{left - 6}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<path class="soft" d="M{left} {y(1):.1f}H{left + width}"/>')
    parts.append(f'<text class="small" x="{left + width}" y="{y(1) - 7:.0f}" text-anchor="end">torch softmax</text>')
    parts.append(f'<path class="ours" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in points)}"/>')
    for (a, b), row, length in zip(points, rows, lengths):
        parts.append(f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="4"/>')
        parts.append(f'<text class="label" x="{a - 4:.1f}" y="{b + 21:.1f}" text-anchor="end">{row.ratio:.2f}</text>')
        parts.append(f'<text x="{a:.1f}" y="{top + height + 20}" text-anchor="middle">{length:,}</text>')
    parts.append(f'<text class="small" x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">keys</text>')
    said = ", ".join(f"{row.ratio:.2f} at {row.shape[1]:,} keys" for row in rows)
    return "".join(parts), f"Time of entmax attention as a multiple of torch's softmax attention: {said}."


def one_sentence() -> tuple[str, str]:
    """Return a panel with the weights of one sentence under three mappings, and the same in words."""
    scores = torch.tensor(SCORES, dtype=torch.float64)
    kinds = {
        "softmax": pm.softmax(scores),
        "entmax": pm.entmax(scores),
        "fusedmax": pm.fusedmax(scores, strength=0.3),
    }
    left, row, wide = 100, 28, 96
    parts = [
        '<text class="title" x="8" y="20">The same scores under three mappings</text>',
        '<text class="small" x="8" y="40">grey: exactly 0. fusedmax: neighbours share a weight</text>',
    ]
    said = []
    for column, (name, weights) in enumerate(kinds.items()):
        x = left + column * (wide + 10)
        parts.append(f'<text class="label" x="{x}" y="66">{name}</text>')
        for place, weight in enumerate(weights.tolist()):
            y = 76 + row * place
            length = max(3.0, 90 * weight)
            kind = "bar" if weight > 0 else "zero"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{length:.1f}" height="18" rx="2"/>')
            number = f"{weight:.2f}" if weight > 0 else "0"
            parts.append(f'<text class="small" x="{x + length + 5:.1f}" y="{y + 13}">{number}</text>')
        shown = ", ".join(f"{word} {weight:.2f}" for word, weight in zip(WORDS, weights.tolist()))
        said.append(f"{name}: {shown}.")
    for place, word in enumerate(WORDS):
        parts.append(f'<text x="{left - 10}" y="{90 + row * place}" text-anchor="end">{word}</text>')
    return "".join(parts), " ".join(said)


def _row(panels: Sequence[tuple[str, str]]) -> str:
    """Return a picture with curves beside each other."""
    wide = curves.WIDTH
    body = "".join(f'<g transform="translate({wide * k} 0)">{panel}</g>' for k, (panel, _) in enumerate(panels))
    style = f"<style>{curves.STYLE}</style>"
    return _svg(wide * len(panels), curves.HEIGHT, style + body, " ".join(said for _, said in panels))


def _svg(width: int, height: int, body: str, said: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(said)}</title><style>{STYLE}</style>{body}</svg>\n"
    )
