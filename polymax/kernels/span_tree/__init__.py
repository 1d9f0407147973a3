"""Binary bracketings (CKY): the smoothed maximum over the labelled span trees of a sentence.

    lam(i, j) = max_Omega over labels of scores[i, j, :]
    S(i, i) = 0,   S(i, j) = max_Omega over k = i..j-1 of T(i, k) + T(k+1, j),   T = S + lam
    value = T(0, length - 1)

`span_tree_outside` gives g times the gradient of the value: the expected parts. `span_tree_tangent` gives its
derivative along d and g times the Hessian times d. The chart is what the first leaves for the other two; its layout
is the device's own, in float64, since a long sentence adds up many scores. Entries of the scores with i > j or past
the length are not read; they get 0.

Shapes: scores, d `(B, n, n, L)`; lengths, value, g `(B,)`; chart `(B, n + 1, n + 4)`.

See: Mensch and Blondel 2018, Section 3.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare_instances

# columns past the last that kernels may touch
PADDING = 4


def chart_like(scores: Tensor) -> Tensor:
    """An empty chart for these scores: a square, each row padded, and a row for what goes with the instance."""
    batch, n = scores.shape[:2]
    return scores.new_empty((batch, n + 1, n + PADDING), dtype=torch.float64)


def _fake_inside(scores: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[:1]), chart_like(scores)


def _fake_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _fake_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[:1]), torch.empty_like(scores, memory_format=torch.contiguous_format)


span_tree_inside = declare_instances(
    __name__, "span_tree_inside(Tensor scores, Tensor lengths, float alpha) -> (Tensor, Tensor)", _fake_inside
)
span_tree_outside = declare_instances(
    __name__,
    "span_tree_outside(Tensor scores, Tensor lengths, Tensor chart, Tensor g, float alpha) -> Tensor",
    _fake_outside,
)
span_tree_tangent = declare_instances(
    __name__,
    "span_tree_tangent(Tensor scores, Tensor lengths, Tensor chart, Tensor g, Tensor d, float alpha)"
    " -> (Tensor, Tensor)",
    _fake_tangent,
)
