"""Tags of a sentence as a lattice, and the words under every picture of a sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.plot.canvas import FAINT, array, new_axes
from polymax.plot.words import SIZE, Lettering, text_width, write_ticks

# the darkest blue of attention, and an orange that differs from it in grey and for colour-blind readers
BLUE = "#08519c"
PATH = "#ef8a1d"


def sequence(
    unary: Any,
    transition: Any,
    tokens: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    *,
    path: Any = None,
    ax: Any = None,
) -> Any:
    """Draw the marginals of tag sequences: a column for each word, a row for each tag. Returns the axes.

    The area of a node is the probability of its tag, the width of a line the probability of the pair of tags that it
    joins; exact zeros draw nothing. `path` holds the tags of one sequence, drawn in orange; -1 at its end is padding.

    Shapes: unary (n, s), transition (n-1, s, s) [previous, next], path (n,).

    Example:
        >>> both = [[[0.75, 0.25], [0.0, 0.0]]]
        >>> ax = sequence([[1.0, 0.0], [0.75, 0.25]], both, ["the", "cat"], ["D", "N"], path=[0, 0])
        >>> lines, nodes = ax.collections[:2]
        >>> len(lines.get_segments()), len(nodes.get_offsets())
        (2, 3)
    """
    node, edge, best = _lattice(unary, transition, path)
    n, s = node.shape
    tokens, tags = words("tokens", tokens, n), words("tags", tags, s)
    ax, spacing = sentence_axes(ax, tokens, 0.6 + 0.45 * s, margin=0.4 + max(map(text_width, tags)) / 72)
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    # grey rows, since rules could be read as lines between tags
    for k in range(0, s, 2):
        ax.axhspan(k - 0.5, k + 0.5, color=FAINT, linewidth=0, zorder=0)
    ax.set(ylim=(s - 0.5, -0.5))
    write_ticks(ax.yaxis, range(s), tags)
    token_axis(ax, tokens, spacing)
    diameter = min(20.0, 0.6 * spacing, 0.6 * points(ax)[1] / s)
    t, a, b = np.nonzero(edge)
    p = edge[t, a, b]
    segments = np.stack([np.stack([t, a], -1), np.stack([t + 1, b], -1)], 1)
    ax.add_collection(LineCollection(list(segments), linewidths=thickness(p, 0.28 * diameter), colors=shades(p)))
    t, a = np.nonzero(node)
    p = node[t, a]
    look = {"color": colormaps["Blues"](np.clip(p, 0, 1)), "edgecolors": BLUE, "linewidths": 0.7, "zorder": 3}
    ax.scatter(t, a, s=_area(p, diameter), **look)
    if len(best):
        t = np.arange(len(best))
        ax.plot(t, best, color=PATH, linewidth=1.6, zorder=2.5)
        area = _area(node[t, best], diameter)
        ax.scatter(t, best, s=area, facecolors="none", edgecolors=PATH, linewidths=1.8, zorder=4)
    return ax


def weights(name: str, values: Any) -> np.ndarray:
    """Values as an array; refused unless they are finite and not negative."""
    w = array(name, values)
    if not np.all((w >= 0) & (w < np.inf)):
        raise ValueError(f"{name} must be finite and not negative")
    return w


def words(name: str, labels: Sequence[str] | None, size: int, first: int = 0) -> list[str]:
    """The given labels, or by default the numbers from `first`, checked and ready to be drawn."""
    if labels is None:
        return [str(k) for k in range(first, first + size)]
    if isinstance(labels, str) or len(labels) != size:
        raise ValueError(f"{name} must be {size} labels; got {'a string' if isinstance(labels, str) else len(labels)}")
    return Lettering(labels).texts


def sentence_axes(ax: Any, tokens: Sequence[str], height: float, margin: float = 0.2) -> tuple[Any, float]:
    """The axes, or new axes wide enough for the tokens, and the width of a column in points."""
    n = len(tokens)
    if ax is not None:
        return ax, points(ax)[0] / n
    # the width is bounded: `token_axis` fits the tokens of long sentences
    spacing = min(max(36.0, _room(tokens)), max(80.0, 800 / n), max(20.0, 1000 / n))
    below = 0.0 if _upright(tokens, spacing) else 0.5**0.5 * max(map(text_width, tokens)) / 72
    return new_axes(max(1.2, margin + n * spacing / 72), height + below), spacing


def token_axis(ax: Any, tokens: Sequence[str], spacing: float, first: int = 0) -> None:
    """Write token k below x = first + k: upright while neighbours stay apart, else smaller, else slanted."""
    n = len(tokens)
    look: dict[str, Any] = {"fontsize": SIZE * min(1, spacing / _room(tokens))}
    if not _upright(tokens, spacing):
        # lines of text at 45 degrees are sqrt(1/2) of a column apart
        slanted = min(SIZE, spacing * 0.5**0.5 / 1.1)
        look = {"fontsize": slanted, "rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    write_ticks(ax.xaxis, np.arange(first, first + n), tokens, **look)
    ax.set_xlim(first - 0.5, first + n - 0.5)
    ax.tick_params(length=0, pad=3)
    ax.spines[:].set_visible(False)


def points(ax: Any) -> tuple[float, float]:
    """Width and height of the axes, in points."""
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def thickness(p: np.ndarray, top: float) -> np.ndarray:
    """Line widths in proportion to probabilities, and never too thin to be seen."""
    return np.maximum(0.4, top * p)


def shades(p: np.ndarray) -> np.ndarray:
    """Colours (len(p), 4): blue, more opaque for larger probabilities."""
    from matplotlib.colors import to_rgb

    return np.column_stack([np.tile(to_rgb(BLUE), (len(p), 1)), 0.2 + 0.8 * np.clip(p, 0, 1)])


def _room(tokens: Sequence[str]) -> float:
    # two neighbours and the space between them share two columns
    widths = [text_width(token) for token in tokens]
    return 0.8 * SIZE + max((a + b) / 2 for a, b in zip(widths, widths[1:] or widths))


def _upright(tokens: Sequence[str], spacing: float) -> bool:
    # three quarters of the size is still read with ease
    return spacing >= 0.75 * _room(tokens)


def _area(p: np.ndarray, diameter: float) -> np.ndarray:
    return np.maximum(3, p * diameter**2)


def _lattice(unary: Any, transition: Any, path: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    node, edge = weights("unary", unary), weights("transition", transition)
    if node.ndim != 2 or 0 in node.shape:
        raise ValueError(f"unary must be (n, s), not empty; got {node.shape}")
    n, s = node.shape
    if edge.shape != (n - 1, s, s):
        raise ValueError(f"transition must be (n-1, s, s) = {(n - 1, s, s)}, by the shape of unary; got {edge.shape}")
    best = np.zeros(0) if path is None else array("path", path)
    if path is not None and best.shape != (n,):
        raise ValueError(f"path must be (n,) = {(n,)}, the tag of each word; got {best.shape}")
    length = int((best != -1).sum())
    best = best[:length]
    if not np.isin(best, np.arange(s)).all():
        raise ValueError(f"path must hold tags from 0 to {s - 1}, and -1 at the end for padding")
    return node, edge, best.astype(int)
