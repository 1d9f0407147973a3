"""Sums over dependency trees, arcs crossing or not: the matrix-tree theorem without a subtraction.

    p_k = sum over heads i < k of w_ik                    k = length, ..., 1, tokens eliminated one by one
    w_ij += w_ik w_kj / p_k,   i != j                     trees over the remaining tokens weigh the same, up to p_k
    value = log of the sum over trees of exp(score) = sum over k of log p_k

Position 0 is the root symbol and only ever a head. With a single root it does not count among the heads of p_k, except
for the last token. Tokens are eliminated in the order of their pivots, the largest first, so that p_k is 0 only if no
tree is left. All terms are positive, so weights far apart do not cancel as in a determinant.

`spanning_tree_outside` returns g times the gradient of the value, the probabilities of arcs; `spanning_tree_tangent`
its derivative along d, and g times the Hessian times d; `spanning_tree_sample` a tree for each seed, by its
probability; `spanning_tree_kbest` the k best trees, best first, filled up with -inf and -1. The chart is computed by
the first pass for the next two; its layout depends on the device, in float64. The diagonal, column 0 and entries past
the length are not read; they get 0. Without a tree the value is -inf.

Shapes: scores, d `(B, n + 1, n + 1)`, [head, modifier]; lengths, value, g `(B,)`; chart `(B, 2, n + 2, n + 1)`;
seeds `(B, S)`; sampled heads `(B, S, n)`; best values `(B, k)` and heads `(B, k, n)`, of tokens 1..n, -1 at padding.

See: Tutte 1984; Koo et al. 2007, Structured prediction models via the matrix-tree theorem; Grassmann, Taksar and
Heyman 1985; Lawler 1972 (k best).
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances
from polymax.kernels.passes import declare_passes


def chart_like(scores: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores: the eliminated and the initial weights, with an extra row each."""
    batch, size = scores.shape[:2]
    return scores.new_empty((batch, 2, size + 1, size), dtype=torch.float64)


def _fake_sample(scores: Tensor, lengths: Tensor, seeds: Tensor, single_root: bool) -> Tensor:
    return scores.new_empty((*seeds.shape, scores.shape[1] - 1), dtype=torch.long)


def _fake_kbest(scores: Tensor, lengths: Tensor, k: int, single_root: bool) -> tuple[Tensor, Tensor]:
    batch, size = scores.shape[:2]
    return scores.new_empty((batch, k)), scores.new_empty((batch, k, size - 1), dtype=torch.long)


spanning_tree_inside, spanning_tree_outside, spanning_tree_tangent = declare_passes(
    __name__, "scores", "lengths", chart_like, "bool single_root", alpha=False
)
spanning_tree_sample = declare_instances(
    __name__,
    "spanning_tree_sample(Tensor scores, Tensor lengths, Tensor seeds, bool single_root) -> Tensor",
    _fake_sample,
)
spanning_tree_kbest = declare_instances(
    __name__,
    "spanning_tree_kbest(Tensor scores, Tensor lengths, int k, bool single_root) -> (Tensor, Tensor)",
    _fake_kbest,
)
