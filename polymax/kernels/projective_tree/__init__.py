"""Dependency trees without crossing arcs (Eisner): the smoothed maximum over the trees of a sentence.

    M(i, j) = max_Omega over k = i..j-1 of R(i, k) + L(k+1, j)                        the gap under an arc
    I(i, j) = M(i, j) + scores[i, j],   I(j, i) = M(i, j) + scores[j, i]              the arc, head first
    R(i, i) = 0,   R(i, j) = max_Omega over k = i+1..j of I(i, k) + R(k, j)           all that i heads to the right
    L(i, i) = 0,   L(i, j) = max_Omega over k = i..j-1 of L(i, k) + I(j, k)           all that j heads to the left
    value = R(0, length), or with a single root max_Omega over r = 1..length of scores[0, r] + L(1, r) + R(r, length)

Position 0 is the root symbol and only ever a head. `projective_tree_outside` returns g times the gradient of the value:
the expected arcs. `projective_tree_tangent` returns its derivative along d and g times the Hessian times d. The first
pass computes the chart for the other two; its layout depends on the device, in float64, since a long sentence adds up
many scores. The diagonal, column 0 and entries past the length are not read; they get 0.

Shapes: scores, d `(B, n + 1, n + 1)`, [head, modifier]; lengths, value, g `(B,)`; chart `(B, 3, n + 2, n + 5)`.

See: Eisner 1996; Mensch and Blondel 2018, Section 3.
"""

import torch
from torch import Tensor

from polymax.kernels.passes import declare_passes

# columns past the last that kernels may touch
PADDING = 4


def chart_like(scores: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores: squares for R, L and I with padded rows, and a row for numbers of the
    instance.
    """
    batch, size = scores.shape[:2]
    return scores.new_empty((batch, 3, size + 1, size + PADDING), dtype=torch.float64)


projective_tree_inside, projective_tree_outside, projective_tree_tangent = declare_passes(
    __name__, "scores", "lengths", chart_like, "bool single_root"
)
