"""Pictures, on matplotlib axes: `pip install polymax[plot]`.

Every function draws on the `ax` it is given, or on a figure of its own, and returns the axes; none touches
pyplot or the settings of matplotlib. Save with `ax.figure.savefig("picture.png")`.
"""

from polymax.plot.alignment import alignment
from polymax.plot.dependencies import dependencies
from polymax.plot.matrix import attention
from polymax.plot.mixture import matching, support
from polymax.plot.regularizer import curves, simplex
from polymax.plot.sequence import sequence
from polymax.plot.supports import attention_supports
from polymax.plot.tree import arcs, tree

__all__ = [
    "alignment",
    "arcs",
    "attention",
    "attention_supports",
    "curves",
    "dependencies",
    "matching",
    "sequence",
    "simplex",
    "support",
    "tree",
]
