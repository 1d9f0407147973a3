"""Attention weights as a matrix picture, in the convention of the papers on sparse attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.plot.canvas import FAINT, INK, ZERO, array, new_axes
from polymax.plot.words import Lettering, text_width, write_ticks

# degrees by which words above columns lean
SLANT = 50

Segment = tuple[tuple[int, int], tuple[int, int]]


def attention(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    ax: Any = None,
    clusters: bool = False,
    values: bool = False,
    colorbar: bool = False,
    vmax: float | None = None,
) -> Any:
    """Draw attention weights: a row for each target word, a column for each source word. Returns the axes.

    Exact zeros are grey; positive weights go from near white to dark blue at `vmax`, by default the largest.
    Equal weights side by side in a row have no border between them, so that a fused group is one block. With
    `clusters`, equal weights that stand apart carry the same number; with `values`, cells show their weight.

    Shapes: weights (target words, source words), a tensor or an array.

    Example:
        >>> ax = attention([[0.5, 0.5, 0.0]], ["chat"], ["the", "cat", "sleeps"])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['the', 'cat', 'sleeps']

    See: Niculae and Blondel 2017, Section 5.
    """
    w = _weights(weights, rows, columns)
    top = float(w.max(initial=0)) if vmax is None else float(vmax)
    if vmax is not None and not 0 < top < np.inf:
        raise ValueError(f"vmax must be positive and finite; got {vmax}")
    if ax is None:
        ax = new_axes(*figure_size(rows, columns, colorbar))
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    cmap = colormaps["Blues"].with_extremes(bad=ZERO)
    mesh = ax.pcolormesh(np.ma.masked_equal(w, 0), cmap=cmap, norm=Normalize(0, top or 1))
    for segments, color in zip(borders(w), (FAINT, INK)):
        ax.add_collection(LineCollection(segments, colors=color, linewidths=0.6, clip_on=False))
    word_axes(ax, rows, columns)
    dark = w > 0.55 * (top or 1)
    if values:
        for i, j in np.argwhere(w > 0):
            _write(ax, j + 0.5, i + 0.5, _short(w[i, j]), dark[i, j], 7)
    if clusters:
        for i, j, number in cluster_numbers(w):
            # beside a value the number moves to the corner
            x, y, size = (j + 0.86, i + 0.2, 5) if values else (j + 0.5, i + 0.5, 7)
            _write(ax, x, y, str(number), dark[i, j], size)
    if colorbar:
        ax.figure.colorbar(mesh, ax=ax, shrink=0.8, pad=0.02, label="weight")
    return ax


def word_axes(ax: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label unit cells with words, the first row at the top and the column labels above it."""
    ax.set_xlim(0, len(columns))
    ax.set_ylim(len(rows), 0)
    ax.xaxis.tick_top()
    slanted = {"rotation": SLANT, "ha": "left", "rotation_mode": "anchor"}
    write_ticks(ax.xaxis, np.arange(len(columns)) + 0.5, columns, **slanted)
    write_ticks(ax.yaxis, np.arange(len(rows)) + 0.5, rows)
    ax.tick_params(length=0, pad=3)
    ax.spines[:].set_visible(False)


def borders(w: np.ndarray) -> tuple[list[Segment], list[Segment]]:
    """Border segments ((x, y), (x, y)): borders that touch only zeros, and borders around positive weights.

    They surround every cell; equal positive neighbours in a row have no border between them.
    """
    split = np.ones((w.shape[0], w.shape[1] + 1), dtype=bool)
    split[:, 1:-1] = (w[:, 1:] != w[:, :-1]) | (w[:, 1:] == 0)
    upright = np.pad(w, ((0, 0), (1, 1)))
    level = np.pad(w, ((1, 1), (0, 0)))
    beside = (upright[:, 1:] > 0) | (upright[:, :-1] > 0)
    above = (level[1:] > 0) | (level[:-1] > 0)
    faint, strong = (
        [((j, i), (j, i + 1)) for i, j in np.argwhere(split & (beside == positive)).tolist()]
        + [((j, i), (j + 1, i)) for i, j in np.argwhere(above == positive).tolist()]
        for positive in (False, True)
    )
    return faint, strong


def cluster_numbers(w: np.ndarray) -> list[tuple[int, int, int]]:
    """Triples (row, column, number), one for each weight that has an equal one in its row beyond a different weight.

    The groups of a row are numbered from 1, the largest weight first.
    """
    marks = []
    for i, row in enumerate(w):
        number = 0
        for value in np.unique(row[row > 0])[::-1]:
            members = np.flatnonzero(row == value)
            if members[-1] - members[0] >= len(members):
                number += 1
                marks += [(i, int(j), number) for j in members]
    return marks


def _weights(weights: Any, rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    w = array("weights", weights)
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"weights must be (target words, source words), not empty; got {w.shape}")
    if not np.all((w >= 0) & (w < np.inf)):
        raise ValueError("weights must be finite and not negative")
    for name, labels, size in (("rows", rows, w.shape[0]), ("columns", columns, w.shape[1])):
        if isinstance(labels, str) or len(labels) != size:
            got = "a string" if isinstance(labels, str) else len(labels)
            raise ValueError(f"{name} must be {size} labels, for weights of shape {w.shape}; got {got}")
    return w


def figure_size(rows: Sequence[str], columns: Sequence[str], colorbar: bool = False) -> tuple[float, float]:
    """The size of the figure in inches: the cells, the words beside them, and the slanted words above them."""
    beside, above = ([text_width(text) / 72 for text in Lettering(words).texts] for words in (rows, columns))
    # add the width by which slanted words reach beyond the last column
    over = max(width * np.cos(np.radians(SLANT)) - 0.42 * place for place, width in enumerate(reversed(above)))
    width = 0.42 * len(columns) + 0.8 * colorbar + 0.3 + max(0.9, max(beside) + max(over, 0.0))
    return width, 0.32 * len(rows) + 0.3 + max(0.6, max(above) * np.sin(np.radians(SLANT)))


def _short(value: float) -> str:
    return "<.01" if value < 0.005 else f"{value:.2f}".removeprefix("0")


def _write(ax: Any, x: float, y: float, text: str, on_dark: bool, size: int) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color="white" if on_dark else INK)
