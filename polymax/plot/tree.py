"""Trees over a sentence: constituents as brackets, dependencies as arcs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.plot.canvas import INK
from polymax.plot.sequence import (
    BLUE,
    points,
    sentence_axes,
    shades,
    thickness,
    token_axis,
    weights,
    words,
)
from polymax.plot.words import SIZE, text_width, write_word

# smaller probabilities are not written
LEAST = 0.05
# the arcs of a head leave its word farther from the middle than the arc from its own head arrives
LEAVE, ARRIVE = 0.2, 0.08
TIP = 0.22

Span = tuple[int, int]


def tree(mu: Any, tokens: Sequence[str] | None = None, *, labels: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Draw constituents over a sentence, wider ones higher. Returns the axes.

    Indicators, all 0 and 1, are drawn as a tree. For marginals, every span with positive probability is a bracket: the
    more probable, the thicker and darker; probabilities other than 1 are written. `labels` names the last dim of
    labelled spans: the most probable labels are written, as many as fit. Single words have no bracket.

    Shapes: mu (n, n) or (n, n, labels), [i, j] the span of the words i, ..., j, i <= j.

    Example:
        >>> ax = tree([[1, 0, 1], [0, 1, 1], [0, 0, 1]], ["the", "cat", "sleeps"])
        >>> [line.tolist() for line in ax.collections[0].get_segments()[:2]]
        [[[1.0, 2.0], [1.5, 1.0]], [[1.0, 2.0], [0.0, 0.0]]]
    """
    w, names = _spans(mu, labels)
    n = len(w)
    tokens = words("tokens", tokens, n)
    spans = {(i, j): w[i, j] for i, j in np.argwhere(w.any(-1)).tolist() if i < j or names}
    if np.isin(w, (0, 1)).all() and not _crossing(list(spans)):
        ax, spacing = sentence_axes(ax, tokens, 0.6 + min(5.0, 0.34 * n))
        _draw_tree(ax, spans, names, n, spacing)
    else:
        levels = heights(list(spans))
        # without labels nothing is drawn on the level of the words
        low, high = (0.4 if names else 1.4), max(levels.values(), default=2) + 0.7
        ax, spacing = sentence_axes(ax, tokens, 0.4 + min(9.0, 0.24 * (high - low)))
        ax.set_ylim(low, high)
        _draw_brackets(ax, spans, names, levels, spacing)
    token_axis(ax, tokens, spacing)
    ax.set_yticks([])
    return ax


def arcs(mu: Any, tokens: Sequence[str] | None = None, *, ax: Any = None) -> Any:
    """Draw dependencies over a sentence, an arrow from each head to its modifier. Returns the axes.

    The more probable an arc, the thicker and darker; probabilities other than 1 are written, and exact zeros are not
    drawn. The root is above the sentence. Word k stands at x = k, so that positions are indices of mu.

    Shapes: mu (n+1, n+1), [head, modifier], 0 is the root.

    Example:
        >>> ax = arcs([[0, 0, 0.75], [0, 0, 0.25], [0, 1, 0]], ["the", "cat"])
        >>> len(ax.collections[0].get_paths()), [text.get_text() for text in ax.texts]
        (3, ['.25', 'root .75'])
    """
    w = _heads(mu)
    n = len(w) - 1
    tokens = words("tokens", tokens, n, first=1)
    found = np.argwhere(w)
    # faint arcs first, so that the likely ones are on top
    found = found[np.argsort(w[tuple(found.T)], kind="stable")]
    p = w[tuple(found.T)]
    rise = np.array([_rise(w, h, m) for h, m in found])
    top = 0.9 + max(rise, default=0.0)
    ax, spacing = sentence_axes(ax, tokens, 0.6 + min(4.0, 0.42 * top))
    from matplotlib.collections import PathCollection

    curves = [_curve(h, m, r, top) for (h, m), r in zip(found, rise)]
    look: dict[str, Any] = {
        "linewidths": thickness(p, 1.9),
        "edgecolors": shades(p),
        "facecolors": "none",
        "clip_on": False,
    }
    ax.add_collection(PathCollection(curves, **look))
    tips = np.array([curve.vertices[-1, 0] for curve in curves])
    look = {"color": shades(p), "marker": "v", "linewidths": 0, "clip_on": False, "zorder": 2}
    ax.scatter(tips, np.full(len(tips), TIP / 2), s=14 + 22 * np.clip(p, 0, 1), **look)
    for (h, m), r, q in zip(found, rise, p):
        if h == 0 and q >= LEAST:
            _write(ax, m, top + 0.2, f"root {_number(q)}".strip(), min(7.5, 0.21 * spacing))
        elif h:
            _write(ax, (h + m) / 2, r, _number(q), min(7.5, 0.21 * spacing))
    ax.set_ylim(0, top + 0.45)
    token_axis(ax, tokens, spacing, first=1)
    ax.set_yticks([])
    return ax


def heights(spans: Sequence[Span]) -> dict[Span, int]:
    """Heights of brackets: the width of the span, and more if brackets of one width would overlap."""
    placed: dict[Span, int] = {}
    base = 0
    for width in range(1, 1 + max((j - i + 1 for i, j in spans), default=0)):
        # the end of the last bracket on each level of this width
        ends: list[int] = []
        for i, j in sorted(span for span in spans if span[1] - span[0] + 1 == width):
            level = next((k for k, end in enumerate(ends) if end < i), len(ends))
            ends[level : level + 1] = [j]
            placed[i, j] = base + level + 1
        base += max(1, len(ends))
    return placed


def _draw_tree(ax: Any, spans: dict[Span, np.ndarray], names: list[str], n: int, spacing: float) -> None:
    from matplotlib.collections import LineCollection

    # from the widest, so that parents come before children
    nodes = sorted({*spans, *((i, i) for i in range(n))}, key=lambda span: (span[0] - span[1], span))
    # over the middle of its words and as high as it is wide: no line crosses another
    place = {(i, j): ((i + j) / 2, float(j - i)) for i, j in nodes}
    lines = []
    for k, (i, j) in enumerate(nodes):
        around = [span for span in nodes[:k] if span[0] <= i and j <= span[1]]
        if around:
            lines.append((place[around[-1]], place[i, j]))
    ax.add_collection(LineCollection(lines, colors=INK, linewidths=1.1, capstyle="round", clip_on=False, zorder=1))
    inner = [place[i, j] for i, j in spans if i < j]
    if names:
        texts = {span: "+".join(name for name, p in zip(names, row) if p) for span, row in spans.items()}
        size = min(9.0, 0.9 * spacing * SIZE / max([1.0, *map(text_width, texts.values())]))
        for span, text in texts.items():
            _write(ax, *place[span], text, size, gap=True)
    elif inner:
        ax.scatter(*np.array(inner).T, s=14, color=BLUE, linewidths=0, zorder=2)
    ax.set_ylim(-0.45 if names else -0.08, max(1, n - 1) + 0.3)


def _draw_brackets(
    ax: Any, spans: dict[Span, np.ndarray], names: list[str], levels: dict[Span, int], spacing: float
) -> None:
    """Draw a bracket for each span, darker and thicker for larger probabilities, with its labels."""
    from matplotlib.collections import LineCollection

    wide = [span for span in spans if span[0] < span[1]]
    p = np.array([spans[span].sum() for span in wide])
    lines = [_bracket(*span, levels[span]) for span in wide]
    look: dict[str, Any] = {
        "linewidths": thickness(p, 2.6),
        "colors": shades(p),
        "capstyle": "butt",
        "joinstyle": "miter",
    }
    ax.add_collection(LineCollection(lines, **look))
    low, high = ax.get_ylim()
    size = min(7.5, 0.55 * points(ax)[1] / (high - low), 0.25 * spacing)
    for (i, j), row in spans.items():
        order = [k for k in np.argsort(-row, kind="stable") if row[k] >= LEAST]
        parts = [f"{names[k] if names else ''} {_number(row[k])}".strip() for k in order]
        # as many labels as fit into the bracket
        room = (j - i + 0.8) * spacing * SIZE
        while len(parts) > 1 and text_width("  ".join(parts)) * size > room:
            parts.pop()
        text = "  ".join(parts)
        _write(ax, (i + j) / 2, levels[i, j], text, min(size, room / max(1, text_width(text))), gap=True)


def _bracket(i: int, j: int, level: int) -> list[tuple[float, float]]:
    return [(i - 0.4, level - 0.4), (i - 0.4, level), (j + 0.4, level), (j + 0.4, level - 0.4)]


def _curve(head: int, modifier: int, rise: float, top: float) -> Any:
    from matplotlib.path import Path

    if head == 0:
        return Path([(modifier, top), (modifier, TIP)])
    side = np.sign(modifier - head)
    start, end = head + side * LEAVE, modifier - side * ARRIVE
    # in the middle, a cubic curve has 3/4 of the height of its control points, plus 1/8 of the height of each end
    control = (rise - TIP / 8) * 4 / 3
    return Path([(start, 0), (start, control), (end, control), (end, TIP)], [Path.MOVETO] + 3 * [Path.CURVE4])


def _rise(w: np.ndarray, head: int, modifier: int) -> float:
    """Height of an arc: to the left, above the arc in the opposite direction, if there is one; 0 from the root."""
    apart = 0.4 if modifier < head and w[modifier, head] else 0.0
    return apart + abs(head - modifier) ** 0.75 if head else 0.0


def _number(p: float) -> str:
    return f"{p:.2f}".removeprefix("0") if LEAST <= p < 0.995 else ""


def _write(ax: Any, x: float, y: float, text: str, size: float, gap: bool = False) -> None:
    """Write text with a white outline, or in a gap of the line below it."""
    from matplotlib.patheffects import withStroke

    # smaller sizes are not legible
    if not text or size < 3.5:
        return
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "color": INK, "zorder": 3}
    if gap:
        look["bbox"] = {"facecolor": "white", "linewidth": 0, "pad": 0.8}
    else:
        look["path_effects"] = [withStroke(linewidth=2.2, foreground="white")]
    write_word(ax, x, y, text, **look)


def _crossing(spans: Sequence[Span]) -> bool:
    return any(a < c <= b < d for a, b in spans for c, d in spans)


def _spans(mu: Any, labels: Sequence[str] | None) -> tuple[np.ndarray, list[str]]:
    """Weights (n, n, labels), and the names of the labels, which are empty for spans without labels."""
    w = weights("mu", mu)
    if w.ndim not in (2, 3) or w.shape[0] != w.shape[1] or 0 in w.shape:
        raise ValueError(f"mu must be (n, n) or (n, n, labels), not empty; got {w.shape}")
    if w[np.tril_indices(len(w), -1)].any():
        raise ValueError("mu must be 0 below the diagonal: [i, j] is the span of the words i, ..., j, i <= j")
    if w.ndim == 2 and labels is not None:
        raise ValueError(f"labels need mu of shape (n, n, labels); got {w.shape}")
    if w.ndim == 2:
        return w[..., None], []
    return w, words("labels", labels, w.shape[2])


def _heads(mu: Any) -> np.ndarray:
    w = weights("mu", mu)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or len(w) < 2:
        raise ValueError(f"mu must be (n+1, n+1) for n words and the root; got {w.shape}")
    if w[:, 0].any() or w.diagonal().any():
        raise ValueError("mu must be 0 in column 0 and on the diagonal: it is [head, modifier], and 0 is the root")
    return w
