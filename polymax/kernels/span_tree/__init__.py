"""Binary bracketings (CKY): the smoothed maximum over the labelled span trees of a sentence.

    lam(i, j) = max_Omega over labels of scores[i, j, :]
    S(i, i) = 0,   S(i, j) = max_Omega over k = i..j-1 of T(i, k) + T(k+1, j),   T = S + lam
    value = T(0, length - 1)

`span_tree_outside` returns g times the gradient of the value: the expected parts. `span_tree_tangent` returns its
derivative along d and g times the Hessian times d. The first pass computes the chart for the other two; its layout
depends on the device, in float64, since a long sentence adds up many scores. Entries of the scores with i > j or past
the length are not read; they get 0.

Shapes: scores, d `(B, n, n, L)`; lengths, value, g `(B,)`; chart `(B, n + 1, n + 4)`.

See: Mensch and Blondel 2018, Section 3.
"""

import torch
from torch import Tensor

from polymax.kernels.passes import declare_passes

# columns past the last that kernels may touch
PADDING = 4


def chart_like(scores: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores: a square with padded rows, and a row for scalars of the instance."""
    batch, n = scores.shape[:2]
    return scores.new_empty((batch, n + 1, n + PADDING), dtype=torch.float64)


span_tree_inside, span_tree_outside, span_tree_tangent = declare_passes(__name__, "scores", "lengths", chart_like)
