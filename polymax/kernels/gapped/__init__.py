"""Alignments of whole sequences with gaps: smoothed maxima over three states of each cell (i, j), from (0, 0) on.

    M[i, j] = pairs[i, j] + P[i-1, j-1]
    X[i, j] = max_Omega(M[i-1, j] + open[i, j], X[i-1, j] + extend[i, j])
    Y[i, j] = max_Omega(M[i, j-1] + open[i, j], X[i, j-1] + open[i, j], Y[i, j-1] + extend[i, j])
    P[i, j] = max_Omega(M[i, j], X[i, j], Y[i, j])        value = P[rows, columns]

M pairs row i with column j, X deletes row i, Y inserts column j. The recursion begins with M[0, 0] = P[0, 0] = 0; cells
outside the grid do not exist. Cell (i, j) reads entry (i - 1, j - 1) of the scores, with 0 in place of -1. The
smoothing is the Tsallis entropy of `alpha`; 1 is Shannon.

Shapes: pairs (B, n, m); open and extend (B, n, m), or (B, 1, 1) for all cells; rows and columns (B,); values (B,)
"""

from torch import Tensor

from polymax.kernels.passes import declare_passes

# rows that the CPU processes together, as the lanes of its vectors
STRIP = 16
# numbers stored for a cell above a strip: mantissas and exponents of M, X and P
KEPT = 6


def chart_like(pairs: Tensor, *_: object) -> Tensor:
    """Return an empty chart: on the CPU the rows above and below strips, and two numbers.

    The two numbers are flags: the chart is that of the fast pass, and an alignment exists. On CUDA the chart has the
    weights of all choices.
    """
    count, n, m = pairs.shape
    if pairs.device.type != "cpu":
        return weights_like(pairs)
    return pairs.new_empty(count, (n + STRIP - 1) // STRIP + 2, KEPT, m + 2)


def weights_like(pairs: Tensor) -> Tensor:
    """Return an empty chart of weights: eight for each cell, those of one diagonal side by side."""
    count, n, m = pairs.shape
    return pairs.new_empty(count, m + 1, 8, n)


gapped_inside, gapped_outside, gapped_tangent = declare_passes(
    __name__, "pairs open extend", "rows columns", chart_like
)
