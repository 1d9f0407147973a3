"""A sparse distribution over structures: its heaviest ones, each drawn with its probability; and matchings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.plot.canvas import INK, new_axes
from polymax.plot.sequence import (
    points,
    sentence_axes,
    sequence,
    shades,
    thickness,
    token_axis,
    weights,
    words,
)
from polymax.plot.tree import arcs, tree
from polymax.plot.words import Lettering, text_width, write_word
from polymax.structures.base import tensors
from polymax.structures.compact.cells import Cells
from polymax.structures.compact.columns import Columns
from polymax.structures.compact.spans import Spans
from polymax.structures.compact.tags import OneEach, Tags
from polymax.structures.compact.trees import Heads


def matching(
    mu: Any, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, *, ax: Any = None
) -> Any:
    """Draw pairs of two sentences: the words of one above those of the other, lines as wide as their weights.

    Exact zeros draw nothing. Returns the axes.

    Shapes: mu (n, m), an assignment, an alignment, or marginals of either.

    Example:
        >>> ax = matching([[0.0, 1.0], [0.75, 0.0]], ["le", "chat"], ["cat", "the"])
        >>> len(ax.collections[0].get_segments())
        2
    """
    w = weights("mu", mu)
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"mu must be (n, m), not empty; got {w.shape}")
    n, m = w.shape
    above, below = words("rows", rows, n), words("columns", columns, m)
    from matplotlib.collections import LineCollection

    ax, spacing = sentence_axes(ax, below if m >= n else above, 1.8)
    # both sentences fill the width
    width = max(n, m)
    x, y = ((np.arange(size) + 0.5) * width / size - 0.5 for size in (n, m))
    i, j = np.nonzero(w)
    p = w[i, j]
    lines = [((x[a], 0.86), (y[b], 0.06)) for a, b in zip(i, j)]
    ax.add_collection(LineCollection(lines, linewidths=thickness(p, 2.6), colors=shades(p), capstyle="round"))
    token_axis(ax, [""] * width, spacing)
    size = min(10.0, 10.0 * points(ax)[0] / width / max([1.0, *(text_width(t) / 0.95 for t in above + below)]))
    for place, texts, height, side in ((x, above, 0.9, "bottom"), (y, below, 0.02, "top")):
        for at, text in zip(place, texts):
            write_word(ax, at, height, text, ha="center", va=side, fontsize=max(size, 5.0), color=INK)
    ax.set(ylim=(-0.15, 1.05), yticks=[])
    return ax


def support(
    distribution: Any,
    tokens: Sequence[str] | None = None,
    others: Sequence[str] | None = None,
    *,
    k: int = 4,
) -> Any:
    """Draw the k heaviest structures of a distribution, best first, each with its probability. Returns their axes.

    `tokens` are the words of the sentence, and `others` those of the second one for pairs, the tags for sequences, the
    labels for spans. The distribution is of one instance: no batch.

    Example:
        >>> found = pm.SparseMap(pm.Assignment()).distribution(torch.tensor([[1.0, 0.5], [0.0, 0.5]]))
        >>> [ax.get_title(loc="left") for ax in support(found, ["a", "b"], ["c", "d"])]
        ['0.75', '0.25']
    """
    if len(distribution.batch_shape):
        raise ValueError(f"distribution must be of one instance; got a batch {tuple(distribution.batch_shape)}")
    found, probs = distribution.topk(k)
    count = max(int((probs > 0).sum()), 1)
    sample = tensors(found)[0]
    width, height = _size(distribution.structure, sample, tokens)
    grid = np.atleast_1d(new_axes(width, count * height, rows=count))
    for ax, p, *parts in zip(grid, probs.tolist(), *(t[:count] for t in tensors(found))):
        _draw(distribution.structure, parts, tokens, others, ax)
        ax.set_title(f"{p:.2f}", loc="left", fontsize=9, color=INK)
    return grid


def _draw(structure: Any, parts: list[Any], tokens: Any, others: Any, ax: Any) -> None:
    # the compact form chooses the picture
    match structure.compact:
        case Heads():
            arcs(parts[0], tokens, ax=ax)
        case Spans():
            tree(parts[0], tokens, labels=others, ax=ax)
        case Tags():
            sequence(parts[0], parts[1], tokens, others, ax=ax)
        case Cells() | Columns() | OneEach():
            matching(parts[0], tokens, others, ax=ax)
        case _:
            raise TypeError(f"there is no picture of {type(structure).__name__}")


def _size(structure: Any, first: Any, tokens: Sequence[str] | None) -> tuple[float, float]:
    """The size in inches of the picture of one structure."""
    n = max(first.shape[1:3])
    widest = max((text_width(t) for t in Lettering(tokens).texts), default=0.0) if tokens else 0.0
    height = 0.7 + 0.3 * first.shape[2] if isinstance(structure.compact, Tags) else 1.9
    return min(max(2.5, n * max(0.55, widest / 72)), 14.0), height
