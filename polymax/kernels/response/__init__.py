"""The derivative of the weights and the mean of structures in their scores.

    q = Z (M g + h),   M^T q,        Z = A^-1 - A^-1 1 1^T A^-1 / (1^T A^-1 1),   A = M1 M1^T + 1

The rows of M are structures, those of M1 their parts of the first tensor. Let g be the change of the scores of parts,
and h the change of scores of structures. Then q is the change of the weights, and M^T q the change of the mean. The map
from (g, h) to (M^T q, q) is symmetric: it is also its own backward pass. A structure that is an affine mix of heavier
structures keeps its weight. `mixture` is the mean itself, M^T p. Weights of NaN stay NaN, and so do the entries that
they weigh.

Shapes:
    places (B, k, parts), the parts of each structure, -1 after the last; overlaps (B, k, k) of M1 M1^T
    probs (B, k) in float64, heaviest first; a structure without weight exists if its overlap with itself is not 0
    g (B, d), h (B, k) in float64; results like g and h, and of the mean (B, d)
    g may have fewer columns than d, and h be None, if the other scores do not change
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances


def _fake(
    places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor | None, d: int
) -> tuple[Tensor, Tensor]:
    return g.new_empty((len(g), d)), torch.empty_like(probs, memory_format=torch.contiguous_format)


def _fake_mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    return probs.new_empty((probs.shape[0], d), dtype=dtype)


response = declare_instances(
    __name__,
    "response(Tensor places, Tensor overlaps, Tensor probs, Tensor g, Tensor? h, SymInt d) -> (Tensor, Tensor)",
    _fake,
)
mixture = declare_instances(
    __name__, "mixture(Tensor places, Tensor probs, int d, ScalarType dtype) -> Tensor", _fake_mixture
)
