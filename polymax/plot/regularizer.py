"""Regularizers seen on two and three classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from polymax.plot.canvas import INK, array, new_axes
from polymax.plot.words import Lettering, text_width, write_legend, write_word

# vertex, edge, inside: colours that differ in grey and for colour-blind readers
SUPPORT = {1: "#b2182b", 2: "#ef8a1d", 3: "#2166ac"}
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


def curves(regularizers: Mapping[str, Any], *, reach: float = 3.0, axes: Any = None) -> Any:
    """Draw the smoothed max of the scores (t, 0), and the weight of the first, for t in [-reach, reach].

        max(t, 0) = max over p in the simplex of  t p_1 - Omega(p)         its slope: p_1 of the argmax

    `regularizers` maps labels to regularizers; `axes` is a pair. Returns the pair: smoothed max, argmax.

    Example:
        >>> left, right = curves({"sparsemax": pm.Gini()})
        >>> right.get_title()
        'first weight of the argmax'

    See: Niculae and Blondel 2017, Section 2.
    """
    if not isinstance(regularizers, Mapping) or not regularizers:
        raise ValueError("regularizers must map labels to regularizers, at least one")
    if not 0 < reach < np.inf:
        raise ValueError(f"reach must be positive and finite; got {reach}")
    left, right = new_axes(8.4, 3.4, columns=2) if axes is None else axes
    t = torch.linspace(-reach, reach, 481, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], -1)
    # wide lines below narrow ones: where curves coincide, all of them show
    for k, (label, regularizer) in enumerate(regularizers.items()):
        look = {"label": str(label), "color": f"C{k}", "linewidth": 3 - 1.6 * k / max(1, len(regularizers) - 1)}
        left.plot(t, array("max", regularizer.max(scores)), **look)
        right.plot(t, array("argmax", regularizer.argmax(scores))[:, 0], **look)
    left.set(xlabel="t", title="smoothed max of (t, 0)")
    right.set(xlabel="t", title="first weight of the argmax", ylim=(-0.04, 1.04))
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#e5e5e5", linewidth=0.6)
        ax.set_axisbelow(True)
    write_legend(left, left.lines[-len(regularizers) :], list(regularizers), frameon=False, loc="upper left")
    return left, right


def simplex(regularizer: Any, scores: Any = None, *, ax: Any = None, labels: Sequence[str] = ("1", "2", "3")) -> Any:
    """Draw a regularizer on the triangle of three classes. Returns the axes.

    The shading is Omega, darker where it is lower. A dot is the argmax of one row of `scores`: blue with
    three positive weights, orange with two, red with one, and larger where several rows share it. The default
    scores, a grid over a disc, show how often the result is sparse; a path of scores draws a trajectory.

    Shapes: scores (points, 3).

    Example:
        >>> ax = simplex(pm.Gini(), labels=("a", "b", "c"))
        >>> [text.get_text() for text in ax.texts]
        ['a', 'b', 'c']
    """
    s = disc() if scores is None else torch.as_tensor(array("scores", scores))
    if s.ndim != 2 or s.shape[1] != 3 or len(s) == 0:
        raise ValueError(f"scores must be (points, 3), not empty; got {tuple(s.shape)}")
    if isinstance(labels, str) or len(labels) != 3:
        raise ValueError(f"labels must be three, one for each class; got {labels!r}")
    if ax is None:
        # the corners at the bottom have their labels beside them
        beside = sum(max(0.0, text_width(text) / 72 - 0.3) for text in Lettering(labels).texts[:2])
        ax = new_axes(3.6 + beside, 3.4)
    _shade(ax, regularizer)
    points, repeats = np.unique(array("argmax", regularizer.argmax(s)), axis=0, return_counts=True)
    # the more dots, the smaller they are
    base = min(18.0, 180 / np.sqrt(len(s)))
    for size, color in SUPPORT.items():
        chosen = (points > 0).sum(1) == size
        x, y = (points[chosen] @ CORNERS).T
        area = base * np.sqrt(repeats[chosen])
        ax.scatter(x, y, s=area, color=color, linewidths=0, zorder=3 + 1 / size, clip_on=False)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=INK, linewidth=0.9, zorder=2)
    for corner, label, place in zip(CORNERS, labels, ("right", "left", "center")):
        shift = {"right": (-0.04, -0.03), "left": (0.04, -0.03), "center": (0, 0.06)}[place]
        x, y = corner + shift
        write_word(ax, x, y, label, ha=place, va="center", color=INK)
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.1, 0.98), aspect="equal")
    ax.axis("off")
    return ax


def disc(radius: float = 2.0, rings: int = 20) -> torch.Tensor:
    """Scores (points, 3) with sum 0 on a triangular grid, as far as `radius` from 0."""
    k = torch.arange(-2 * rings, 2 * rings + 1, dtype=torch.float64)
    a, b = (side.flatten() for side in torch.meshgrid(k, k, indexing="ij"))
    # neighbours of the grid differ by one unit moved from one class to another: distance sqrt(2)
    points = torch.stack([a, b, -a - b], -1) * (radius / rings / 2**0.5)
    return points[points.norm(dim=-1) <= radius * (1 + 1e-9)]


def _shade(ax: Any, regularizer: Any) -> None:
    from matplotlib.tri import Triangulation

    side = 120
    i, j = (index.flatten() for index in np.meshgrid(np.arange(side + 1), np.arange(side + 1), indexing="ij"))
    inside = i + j <= side
    p = np.stack([i, j, side - i - j], -1)[inside] / side
    omega = array("omega", regularizer.omega(torch.as_tensor(p)))
    x, y = (p @ CORNERS).T
    finite = np.isfinite(omega)
    # a constant regularizer has no shading
    if finite.sum() < 3 or np.ptp(omega[finite]) < 1e-9:
        return
    triangles = Triangulation(x, y)
    triangles.set_mask(~finite[triangles.triangles].all(1))
    low, high = omega[finite].min(), omega[finite].max()
    # from mid grey to white, so that dots stand out
    ax.tricontourf(triangles, np.where(finite, omega, low), levels=12, cmap="Greys_r", vmin=2 * low - high)
