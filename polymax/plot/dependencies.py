"""Pictures of a dependency tree with its relations: arcs in levels, so that labels do not overlap."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.plot.canvas import INK, array, new_axes
from polymax.plot.sequence import BLUE, points, shades, words
from polymax.plot.words import SIZE, text_width, write_ticks, write_word

# in points: the size of labels, the room beside words and labels, and the width on a word for the ends of arcs
LABEL, GAP, REACH = 8.0, 8.0, 12.0
# inches
LEVEL = 0.25
TIP = 0.32

Arc = tuple[int, int]


def dependencies(
    heads: Sequence[int],
    tokens: Sequence[str] | None = None,
    relations: Sequence[str] | None = None,
    *,
    probabilities: Any = None,
    ax: Any = None,
) -> Any:
    """Draw a dependency tree: an arrow to each word from its head, with the name of the relation.

    An arc is above all arcs that it contains or crosses, so that labels do not overlap; distances between words fit the
    words and the labels. The head 0 is the root, above its word. With `probabilities`, less probable arcs are paler,
    and probabilities other than 1 are written. Returns the axes.

    Shapes: heads, relations and probabilities (n,).

    Example:
        >>> ax = dependencies([2, 0, 2], ["she", "reads", "books"], ["nsubj", "root", "obj"])
        >>> [text.get_text() for text in ax.texts]
        ['nsubj', 'root', 'obj']
    """
    above = _checked(heads)
    n = len(above)
    tokens = words("tokens", tokens, n, first=1)
    names = words("relations", relations, n) if relations is not None else [""] * n
    p = np.ones(n) if probabilities is None else _probabilities(probabilities, n)
    names = [f"{name} {_share(q)}".strip() for name, q in zip(names, p)]
    levels = arc_levels([(head, word) for word, head in enumerate(above, 1) if head])
    top = max(levels.values(), default=0) + 1.0
    x, width = _places(above, tokens, names)
    if ax is None:
        ax = new_axes(max(1.2, width / 72), 0.4 + LEVEL * (top + 1))
        scale = 1.0
    else:
        # in a narrow figure, texts are smaller
        room = points(ax)
        scale = min(1.0, room[0] / width, room[1] / (72 * LEVEL * (top + 1)))
    ends = _ends(above, x, tokens)
    for word, (head, color, name) in enumerate(zip(above, shades(p), names), 1):
        if head:
            level, (start, end) = levels[head, word], ends[head, word]
            ax.plot([start, start, end, end], [0, level, level, TIP], color=color, linewidth=1.1, clip_on=False)
            place = ((start + end) / 2, float(level))
        else:
            end = x[word - 1]
            place = (end, top + 0.25)
            ax.plot([end, end], [top, TIP], color=color, linewidth=1.1, clip_on=False)
        ax.scatter([end], [TIP / 2], s=16 * scale, color=[color], marker="v", linewidths=0, clip_on=False, zorder=2)
        # smaller sizes are not legible
        if name and LABEL * scale >= 3.5:
            box = {"facecolor": "white", "linewidth": 0, "pad": 0.6}
            look: dict[str, Any] = {"ha": "center", "va": "center", "color": INK if head else BLUE}
            write_word(ax, *place, name, zorder=3, bbox=box, fontsize=LABEL * scale, **look)
    write_ticks(ax.xaxis, x, tokens, fontsize=SIZE * scale)
    ax.tick_params(length=0, pad=3)
    ax.spines[:].set_visible(False)
    ax.set(xlim=(0, width), ylim=(0, top + 0.8), yticks=[])
    return ax


def arc_levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """Levels of arcs, from 1: shorter arcs first, each above all arcs that it contains or crosses.

    Example:
        >>> arc_levels([(2, 1), (2, 4), (4, 3), (1, 5)])
        {(2, 1): 1, (4, 3): 1, (2, 4): 2, (1, 5): 3}
    """
    placed: dict[Arc, int] = {}
    for arc in sorted(arcs, key=lambda arc: (abs(arc[0] - arc[1]), min(arc))):
        low, high = min(arc), max(arc)
        below = [level for other, level in placed.items() if min(other) < high and low < max(other)]
        placed[arc] = 1 + max(below, default=0)
    return placed


def _places(heads: Sequence[int], tokens: Sequence[str], names: Sequence[str]) -> tuple[list[float], float]:
    """The places of words in points, and the width of the picture: words do not touch, labels fit into their arcs."""
    halves = [text_width(token) / 2 + GAP / 2 for token in tokens]
    gaps = [a + b for a, b in zip(halves, halves[1:])]
    arcs = [(head, word) for word, head in enumerate(heads, 1) if head]
    # shorter arcs first: longer arcs contain their space
    for head, word in sorted(arcs, key=lambda arc: abs(arc[0] - arc[1])):
        inside = slice(min(head, word) - 1, max(head, word) - 1)
        need = text_width(names[word - 1]) * LABEL / SIZE + GAP
        reach = sum(min(REACH, halves[end - 1]) for end in (head, word))
        missing = need + reach - sum(gaps[inside])
        if missing > 0:
            share = missing / len(gaps[inside])
            gaps[inside] = [gap + share for gap in gaps[inside]]
    root = max((text_width(name) * LABEL / SIZE / 2 for head, name in zip(heads, names) if not head), default=0.0)
    x = np.cumsum([max(halves[0], root), *gaps])
    return x.tolist(), float(x[-1] + max(halves[-1], root))


def _ends(heads: Sequence[int], x: Sequence[float], tokens: Sequence[str]) -> dict[Arc, tuple[float, float]]:
    """The ends of arcs, on that side of a word to which the arc goes; shorter arcs end farther out: none cross."""
    touching: dict[tuple[int, int], list[Arc]] = {}
    for word, head in enumerate(heads, 1):
        if head:
            for here, there in ((word, head), (head, word)):
                touching.setdefault((here, int(np.sign(there - here))), []).append((head, word))
    places: dict[tuple[int, Arc], float] = {}
    for (here, side), arcs in touching.items():
        arcs.sort(key=lambda arc: -abs(arc[0] - arc[1]))
        reach = min(REACH, text_width(tokens[here - 1]) / 2 + GAP / 2)
        for k, arc in enumerate(arcs, 1):
            places[here, arc] = x[here - 1] + side * reach * k / max(len(arcs), 2)
    return {arc: (places[arc[0], arc], places[arc[1], arc]) for arcs in touching.values() for arc in arcs}


def _share(p: float) -> str:
    return "" if p >= 0.995 else f"{p:.2f}".removeprefix("0")


def _checked(heads: Sequence[int]) -> list[int]:
    above = array("heads", heads)
    if above.ndim != 1 or len(above) == 0:
        raise ValueError(f"heads must be (n,), not empty; got {above.shape}")
    n = len(above)
    if not np.isin(above, np.arange(n + 1)).all() or (above == np.arange(1, n + 1)).any():
        raise ValueError(f"heads must be words from 1 to {n}, none its own, or 0 for the root; got {above.tolist()}")
    return above.astype(int).tolist()


def _probabilities(values: Any, n: int) -> np.ndarray:
    p = array("probabilities", values)
    if p.shape != (n,) or not np.all((p >= 0) & (p <= 1 + 1e-6)):
        raise ValueError(f"probabilities must be (n,) = ({n},), from 0 to 1; got {p.shape}")
    return p
