"""Pictures, on matplotlib axes: `pip install polymax[plot]`.

Every function draws on the `ax` it is given, or on a figure of its own, and returns the axes; none touches
pyplot or the settings of matplotlib. Save with `ax.figure.savefig("picture.png")`.
"""

from polymax.plot.matrix import attention
from polymax.plot.regularizer import curves, simplex

__all__ = ["attention", "curves", "simplex"]
