"""Centroids over the series that they were learned from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from polymax.plot.canvas import INK, array, new_axes
from polymax.plot.words import write_title

# panels side by side
COLUMNS = 4
# total ink of a panel: the more lines, the paler each
INKS = 6.0


def centroid_panels(centroids: Sequence[Tensor], series: Mapping[str, list[Tensor]], dimension: int = 0) -> Any:
    """A panel for each class: its series in grey, its centroids in colour, one dimension of each. Returns the figure.

    Shapes: centroids (k, size, d) of each class, classes as in `series`; series (n, d)
    """
    columns = min(len(series), COLUMNS)
    rows = -(-len(series) // columns)
    panels = np.atleast_1d(new_axes(3.2 * columns, 2.4 * rows, rows, columns)).flatten()
    for ax, (label, own), learned in zip(panels, series.items(), centroids):
        for values in own:
            ax.plot(array("series", values)[:, dimension], color=INK, linewidth=0.6, alpha=min(0.6, INKS / len(own)))
        for k, values in enumerate(array("centroids", learned)):
            ax.plot(values[:, dimension], color=f"C{k}", linewidth=2.0)
        write_title(ax, f"{label} ({len(own)})", fontsize=10)
        ax.tick_params(length=2, labelsize=8, color=INK, labelcolor=INK)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in panels[len(series) :]:
        ax.axis("off")
    return panels[0].figure
