"""The figures of the demo that show structures: expected ones, sparse and dense, and the best."""

from typing import Any

from polymax.plot import alignment, arcs, sequence, tree
from polymax.plot.canvas import new_axes
from polymax_recipes.demo import tagged
from polymax_recipes.demo.structured import SENTENCE, Shown, series


def alignment_panels(shown: Shown) -> Any:
    """Expected alignments of the two series, and the best path through them."""
    axes = new_axes(11.6, 5.2, columns=2)
    x, y = series()
    path, *expected = shown.expected()
    for ax, call, mu in zip(axes, list(shown.smoothings())[1:], expected):
        alignment(mu, x, y, path=path, ax=ax)
        _title(ax, call)
    return axes[0].figure


def tag_panels(shown: Shown) -> Any:
    """The lattice of tags, and the best sequence in it."""
    axes = new_axes(11.6, 3.6, columns=2)
    best, *expected = shown.expected()
    path = shown.structure.decode(best)
    for ax, call, mu in zip(axes, list(shown.smoothings())[1:], expected):
        sequence(mu.unary, mu.transition, tagged.SHOWN, tagged.TAGS, path=path, ax=ax)
        _title(ax, call)
    return axes[0].figure


def tree_panels(constituents: Shown, dependencies: Shown) -> Any:
    """A column for each kind of tree; a row for the best, the sparse and the dense."""
    axes = new_axes(11.6, 10.4, rows=3, columns=2)
    for column, shown, draw in ((0, constituents, tree), (1, dependencies, arcs)):
        for ax, call, mu in zip(axes[:, column], shown.smoothings(), shown.expected()):
            draw(mu, SENTENCE, ax=ax)
            _title(ax, call)
    figure = axes[0, 0].figure
    figure.get_layout_engine().set(h_pad=0.14)
    return figure


def _title(ax: Any, call: str) -> None:
    ax.set_title(call, fontsize=9.5, family="monospace", pad=8)
