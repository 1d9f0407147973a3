"""Linear assignment: the best matching of rows and columns, and the duals that prove it.

    max over matchings of sum scores[i, match_i]   =   min of sum u + sum v over u_i + v_j >= scores[i, j]

With rows <= columns every row gets one column and every column at most one row, and the duals have v_j >= 0; with rows
> columns every column gets one row, and u_i >= 0. `match` is the column of each row, or -1. Complementary slackness
makes u and v a certificate: u_i + v_j = scores[i, j] if row i and column j are matched, and the dual of an unmatched
row or column is 0. In a square, in which duals are unique only up to a constant, the lowest v_j is 0. All arithmetic is
in float64: sums of a few float32 scores are then exact, so that ties are ties. Among tied matchings each device may
choose another one, but always the same one for the same input; duals are seldom unique.

-inf is a forbidden pair. If no matching is left, match is -1 and u is -inf. NaN or +inf in an instance makes its duals
NaN, and match -1. Entries past rows or columns are not read; they get -1, and 0.

Shapes: scores `(B, n, m)`; rows, columns `(B,)` int64; match `(B, n)` int64; u `(B, n)`; v `(B, m)`.

See: Jonker and Volgenant 1987.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances


def outputs(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty match, u and v for these scores."""
    batch, n, m = scores.shape
    match = scores.new_empty((batch, n), dtype=torch.long)
    return match, scores.new_empty((batch, n)), scores.new_empty((batch, m))


def _fake(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return outputs(scores)


assignment = declare_instances(
    __name__, "assignment(Tensor scores, Tensor rows, Tensor columns) -> (Tensor, Tensor, Tensor)", _fake
)
