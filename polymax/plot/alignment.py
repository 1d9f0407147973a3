"""Expected alignments of two series, between the series themselves."""

from typing import Any

import numpy as np

from polymax.plot.canvas import INK, ZERO, array, new_axes
from polymax.plot.sequence import PATH, weights

# series and cells up to this length are drawn one by one
FEW = 40


def alignment(mu: Any, x: Any = None, y: Any = None, *, path: Any = None, ax: Any = None) -> Any:
    """Draw an expected alignment, the first row at the top, x at its left and y above it. Returns the axes.

    Exact zeros are grey; positive entries go from near white to dark blue at the largest. `path`, the
    indicator of one alignment, is the orange line through its cells; the pairs of a `GappedAlignment` are one, too.

    Shapes: mu (n, m), x (n,) or (n, d), y (m,) or (m, d), path (n, m).

    Example:
        >>> ax = alignment([[1.0, 0.5], [0.0, 1.0]], x=[0.1, 0.7], y=[0.2, 0.9], path=[[1, 0], [0, 1]])
        >>> ax.lines[0].get_xydata().tolist()
        [[0.0, 0.0], [1.0, 1.0]]
        >>> len(ax.child_axes)
        2

    See: Cuturi and Blondel 2017; Mensch and Blondel 2018.
    """
    w = weights("mu", mu)
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"mu must be (n, m), not empty; got {w.shape}")
    n, m = w.shape
    left, top = _series("x", x, n), _series("y", y, m)
    cells = None if path is None else _cells(path, w.shape)
    if ax is None:
        # cells are square unless one series is more than three times as long as the other
        side = 3.6 / max(n, m)
        ax = new_axes(1.2 + max(m * side, 1.2), 1.0 + max(n * side, 1.2))
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    few = max(n, m) <= FEW
    cmap = colormaps["Blues"].with_extremes(bad=ZERO)
    look = {"edgecolors": "white", "linewidth": 0.5} if few else {"rasterized": True}
    edges = np.arange(m + 1) - 0.5, np.arange(n + 1) - 0.5
    ax.pcolormesh(*edges, np.ma.masked_equal(w, 0), cmap=cmap, norm=Normalize(0, float(w.max()) or 1), **look)
    ax.set(xlim=(-0.5, m - 0.5), ylim=(n - 0.5, -0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.tick_params(length=2, labelsize=8, color=INK, labelcolor=INK)
    ax.spines[:].set_visible(False)
    if cells is not None:
        _draw_path(ax, cells, few)
    _draw_series(ax, left, top)
    return ax


def _draw_path(ax: Any, cells: np.ndarray, few: bool) -> None:
    from matplotlib.patheffects import withStroke

    # a long path is thinner, since it hides the cells that it crosses
    width = 1.7 if few else 1.2
    outline = [withStroke(linewidth=1.8 * width, foreground="white")]
    look = {"marker": "o", "markersize": 3.5} if few else {}
    rows, columns = cells.T
    ax.plot(columns, rows, color=PATH, linewidth=width, solid_joinstyle="round", path_effects=outline, **look)


def _draw_series(ax: Any, left: np.ndarray | None, top: np.ndarray | None) -> None:
    # both panels of series are equally deep on the page, whatever the shape of the axes
    box = ax.get_window_extent()
    depth, gap = 0.2 * min(box.width, box.height), 0.02 * min(box.width, box.height)
    if left is not None:
        ax.yaxis.tick_right()
        side = ax.inset_axes((-(depth + gap) / box.width, 0, depth / box.width, 1), sharey=ax)
        # values increase away from the matrix, as in the panel above it
        side.invert_xaxis()
        _draw_curves(side, left, upright=True)
    if top is not None:
        above = ax.inset_axes((0, 1 + gap / box.height, 1, depth / box.height), sharex=ax)
        _draw_curves(above, top, upright=False)


def _draw_curves(ax: Any, series: np.ndarray, upright: bool) -> None:
    from matplotlib import colormaps

    n, d = series.shape
    colors = [INK] if d == 1 else colormaps["viridis"](np.linspace(0, 0.85, d))
    for values, color in zip(series.T, colors):
        line = (values, np.arange(n)) if upright else (np.arange(n), values)
        ax.plot(*line, color=color, linewidth=1.2, marker="o" if n <= FEW else "", markersize=2.2, clip_on=False)
    ax.axis("off")


def _series(name: str, values: Any, size: int) -> np.ndarray | None:
    if values is None:
        return None
    series = array(name, values)
    if series.ndim not in (1, 2) or len(series) != size or 0 in series.shape:
        shape = f"({size},) or ({size}, d)"
        raise ValueError(f"{name} must be {shape}, as long as its side of mu; got {series.shape}")
    if not np.isfinite(series).all():
        raise ValueError(f"{name} must be finite")
    return series.reshape(size, -1)


def _cells(path: Any, shape: tuple[int, ...]) -> np.ndarray:
    y = array("path", path)
    if y.shape != shape:
        raise ValueError(f"path must be {shape}, the shape of mu; got {y.shape}")
    cells = np.argwhere(y == 1)
    # in path order: every step increases row + column
    cells = cells[np.argsort(cells.sum(1), kind="stable")]
    steps = np.diff(cells, axis=0)
    # single steps, or pairs with gaps between them
    ordered = np.all((steps >= 0) & (steps <= 1)) or np.all(steps > 0)
    if len(cells) == 0 or not np.isin(y, (0, 1)).all() or not ordered:
        raise ValueError(
            "path must be 0 except on cells that are 1, steps down, right or diagonal from each other, or each after"
            " the one before in both directions"
        )
    return cells
