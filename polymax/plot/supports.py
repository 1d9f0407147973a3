"""Pictures of the sparsity of a model's attention: a row for each layer, a column for each head."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polymax.nn.attention_statistics import MEASURES, AttentionStatistics
from polymax.plot.canvas import FAINT, INK, array, new_axes


def attention_supports(
    statistics: AttentionStatistics | Sequence[AttentionStatistics],
    *,
    measure: str = "mean_support",
    ax: Any = None,
) -> Any:
    """Draw a measure of each head's attention, by default the mean size of its supports. Returns the axes.

    `statistics` are those of one attention, or of the layers of a model from the first to the last. A darker cell is
    a larger number; the numbers are written into the cells.

    Example:
        >>> one = pm.nn.AttentionStatistics.of_weights(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
        >>> [text.get_text() for text in attention_supports([one, one]).texts]
        ['1', '2', '1', '2']
    """
    layers = [statistics] if isinstance(statistics, AttentionStatistics) else list(statistics)
    values = _values(layers, measure)
    rows, columns = values.shape
    if ax is None:
        ax = new_axes(1.9 + 0.5 * columns, 1.0 + 0.42 * rows)
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    shares = measure in ("zeros", "empty_tiles")
    finite = values[np.isfinite(values)]
    top = 1.0 if shares else float(finite.max(initial=0)) or 1.0
    shown = np.ma.masked_invalid(values)
    mesh = ax.pcolormesh(
        shown, cmap=colormaps["Blues"].with_extremes(bad=FAINT), norm=Normalize(0, top), edgecolors=FAINT
    )
    for i, j in np.argwhere(np.isfinite(values)):
        text = f"{100 * values[i, j]:.0f}" if shares else _short(values[i, j])
        colour = "white" if values[i, j] > 0.55 * top else INK
        ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7, color=colour)
    ax.set(xlim=(0, columns), ylim=(rows, 0), xlabel="head", ylabel="layer")
    ax.set_xticks(np.arange(columns) + 0.5, labels=[str(k) for k in range(columns)])
    ax.set_yticks(np.arange(rows) + 0.5, labels=[str(k) for k in range(rows)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    label = measure.replace("_", " ") + (", %" if shares else "")
    bar = ax.figure.colorbar(mesh, ax=ax, label=label)
    if shares:
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    return ax


def _values(layers: list[AttentionStatistics], measure: str) -> np.ndarray:
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}; got {measure!r}")
    for one in layers:
        if not isinstance(one, AttentionStatistics):
            raise TypeError(f"statistics must be those of attention_statistics; got {type(one).__name__}")
    if not layers:
        raise ValueError("statistics must be those of at least one layer; got none")
    values = [np.atleast_1d(array("statistics", getattr(one, measure))) for one in layers]
    heads = sorted({len(row) for row in values})
    if len(heads) > 1:
        raise ValueError(f"statistics must have one number of heads in all layers; got {', '.join(map(str, heads))}")
    return np.stack(values)


def _short(value: float) -> str:
    """A number as text, in at most four characters if it is below a thousand.

    Example:
        >>> _short(3.14159), _short(25.0), _short(1234.5)
        ('3.1', '25', '1.2k')
    """
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"
