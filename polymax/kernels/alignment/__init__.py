"""Alignment: locally smoothed maxima over monotone paths from (0, 0) to (rows - 1, columns - 1).

    v[i, j] = scores[i, j] + max_Omega(v[i-1, j-1], v[i-1, j], v[i, j-1])        value = v[rows-1, columns-1]

over the predecessors that exist. Ties of the hard maximum go to the diagonal, then down, then right. The smoothing
is the Tsallis entropy of `alpha`: 1 is Shannon (soft-DTW), 2 is Gini, inf is the hard maximum. `outside` gives
g * d value / d scores, `tangent` the inner product of that derivative (at g = 1) with d, and g times its own
derivative along d.

The chart holds the local weights of the three predecessors of every cell. Cells lie skewed, so that an
anti-diagonal of a strip of rows is contiguous: row i and column j are at

    chart[b, i // strip, i % strip + j, :, i % strip]

in which on CUDA the lines from columns[b] on wrap around to line 0, whose lanes before them are unused.

Cell (0, 0) has no predecessor: its first weight is 1, 0 if no path exists, NaN if a score is NaN.

Shapes: scores and d (B, n, m), rows and columns (B,), g and the values (B,).
"""

from torch import Tensor

from polymax.kernels.passes import declare_passes

# rows that the CPU processes together, as the lanes of its vectors
STRIP = 16


def chart_shape(scores: Tensor) -> tuple[int, ...]:
    """Return (B, strips, lines, 3, strip): on the CPU strips of STRIP rows, elsewhere one strip of all rows."""
    count, n, m = scores.shape
    if scores.device.type != "cpu":
        return count, 1, m, 3, n
    return count, (n + STRIP - 1) // STRIP, m + STRIP - 1, 3, STRIP


def chart_like(scores: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores."""
    return scores.new_empty(chart_shape(scores))


alignment_inside, alignment_outside, alignment_tangent = declare_passes(__name__, "scores", "rows columns", chart_like)
