"""Drop-in replacements for torch.softmax: one line each over the regularizers.

Every mapping takes scores of any shape and floating dtype, `dim`, and an optional bool `mask` (True = keep) that
broadcasts to the scores; -inf scores are masked too. A fully masked row gives zeros. `dtype` casts the scores first, as
torch.softmax does. What a mapping is named for (alpha, p, strength, bounds, k) comes before `dim`: say `dim=1`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polymax.regularizers import (
    Bounded,
    Fused,
    Gini,
    Grouped,
    Norm,
    Oscar,
    Shannon,
    SquaredPNorm,
    Tsallis,
    Zero,
)
from polymax.regularizers.bounded import Budget

Number = float | Tensor


def hardmax(x: Tensor, dim: int = -1, mask: Tensor | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
    """The one-hot vector of the maximum, the first one among ties; its gradient is 0.

    >>> hardmax(torch.tensor([1.0, 3.0, 2.0]))
    tensor([0., 1., 0.])
    """
    return Zero().argmax(_cast(x, dtype), dim, mask)


def softmax(
    x: Tensor, dim: int = -1, mask: Tensor | None = None, gamma: Number = 1.0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """exp(x / gamma), normalised: torch.softmax with a mask and a temperature.

    >>> softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    return Shannon(gamma).argmax(_cast(x, dtype), dim, mask)


def sparsemax(
    x: Tensor, dim: int = -1, mask: Tensor | None = None, gamma: Number = 1.0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The Euclidean projection of x / gamma onto the simplex: sparse.

    >>> sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """
    return Gini(gamma).argmax(_cast(x, dtype), dim, mask)


def entmax(
    x: Tensor,
    alpha: Number = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Between softmax (alpha = 1) and sparsemax (alpha = 2), and beyond; alpha may be a tensor and be learned.

    Below alpha = 1 all weights are positive, with heavier tails than those of softmax.

    >>> entmax(torch.tensor([-2.0, 0.0, 0.5]), alpha=1.5)
    tensor([0.0000, 0.3260, 0.6740])
    """
    return Tsallis(alpha, gamma).argmax(_cast(x, dtype), dim, mask)


def normmax(
    x: Tensor,
    alpha: Number = 2.0,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Regularized by the alpha-norm of p: close to uniform over few entries.

    >>> normmax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.3110, 0.6890])
    """
    return Norm(alpha, gamma).argmax(_cast(x, dtype), dim, mask)


def sq_pnorm_max(
    x: Tensor,
    p: Number = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Regularized by half the squared p-norm; p = 2 is sparsemax.

    >>> sq_pnorm_max(torch.tensor([-2.0, 0.0, 0.5]), p=2.0)
    tensor([0.0000, 0.2500, 0.7500])
    """
    return SquaredPNorm(p, gamma).argmax(_cast(x, dtype), dim, mask)


def fusedmax(
    x: Tensor,
    strength: Number = 0.1,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparse, and constant over contiguous segments.

    >>> fusedmax(torch.tensor([1.0, 1.1, 0.0, -1.0]), strength=0.2)
    tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    return Fused(strength, gamma).argmax(_cast(x, dtype), dim, mask)


def oscarmax(
    x: Tensor,
    strength: Number = 0.01,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparse, and constant over clusters of entries anywhere in the row.

    >>> oscarmax(torch.tensor([1.0, -1.0, 1.05]), strength=0.1)
    tensor([0.5000, 0.0000, 0.5000])
    """
    return Oscar(strength, gamma).argmax(_cast(x, dtype), dim, mask)


def groupedmax(
    x: Tensor,
    groups: Tensor | Sequence[int] | Sequence[Sequence[int]],
    strength: Number = 0.1,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparse by groups: weights of a group shrink together, and whole groups become exactly 0.

    >>> groupedmax(torch.tensor([1.0, 0.9, 0.6, -1.0]), [0, 0, 1, 1], strength=0.5)
    tensor([0.5250, 0.4750, 0.0000, 0.0000])
    """
    return Grouped(groups, strength, gamma).argmax(_cast(x, dtype), dim, mask)


def csoftmax(
    x: Tensor,
    upper: Number,
    lower: Number = 0.0,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Softmax with lower <= p <= upper; bounds are numbers or broadcast to x.

    >>> csoftmax(torch.tensor([0.0, 0.0, 9.0]), upper=0.5)
    tensor([0.2500, 0.2500, 0.5000])
    """
    return Bounded(Shannon(gamma), lower, upper).argmax(_cast(x, dtype), dim, mask)


def csparsemax(
    x: Tensor,
    upper: Number,
    lower: Number = 0.0,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparsemax with lower <= p <= upper; bounds are numbers or broadcast to x.

    >>> csparsemax(torch.tensor([0.0, 1.0, 3.0]), upper=0.4)
    tensor([0.2000, 0.4000, 0.4000])
    """
    return Bounded(Gini(gamma), lower, upper).argmax(_cast(x, dtype), dim, mask)


def budgetmax(
    x: Tensor,
    k: Number,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The projection of x / gamma onto weights in [0, 1] that sum to k: a relaxed choice of k entries.

    A tensor k of size 1 along `dim` is a budget for each row.

    >>> budgetmax(torch.tensor([0.0, 1.0, 3.0, -1.0]), k=2)
    tensor([0., 1., 1., 0.])
    """
    return Budget(k, gamma).argmax(_cast(x, dtype), dim, mask)


def _cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The scores in a dtype, as torch.softmax takes one."""
    return x if dtype is None or not isinstance(x, Tensor) else x.to(dtype)
