"""Drop-in replacements for torch.softmax: one line each over the regularizers.

Every mapping takes scores of any shape and floating dtype, `dim`, and an optional bool `mask` (True = keep) that
broadcasts to the scores; -inf scores are masked too. A fully masked row gives zeros. `dtype` casts the scores first, as
torch.softmax does. A mapping's own parameter (alpha, p, strength, upper) stands before `dim`. An integer in that place
could be meant for `dim`, and is refused: say `dim=1`, or `alpha=1`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from polymax import _check
from polymax.regularizers import (
    Bounded,
    Fused,
    Gini,
    Grouped,
    Norm,
    Oscar,
    Regularizer,
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
    return _of(Zero).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


def softmax(
    x: Tensor, dim: int = -1, mask: Tensor | None = None, gamma: Number = 1.0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """exp(x / gamma), normalised: torch.softmax with a mask and a temperature.

    >>> softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    return _of(Shannon, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


def sparsemax(
    x: Tensor, dim: int = -1, mask: Tensor | None = None, gamma: Number = 1.0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The Euclidean projection of x / gamma onto the simplex: sparse.

    >>> sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """
    return _of(Gini, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
def entmax(
    x: Tensor,
    alpha: Number = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The family between softmax (alpha = 1) and sparsemax (alpha = 2), and beyond; alpha may be learned.

    Below alpha = 1 all weights are positive, with heavier tails than those of softmax.

    >>> entmax(torch.tensor([-2.0, 0.0, 0.5]), alpha=1.5)
    tensor([0.0000, 0.3260, 0.6740])
    """
    return _of(Tsallis, alpha, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
def normmax(
    x: Tensor,
    alpha: Number = 2.0,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Weights regularized by their alpha-norm: they are close to uniform over few entries.

    >>> normmax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.3110, 0.6890])
    """
    return _of(Norm, alpha, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
def sq_pnorm_max(
    x: Tensor,
    p: Number = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Weights regularized by half their squared p-norm; p = 2 is sparsemax.

    >>> sq_pnorm_max(torch.tensor([-2.0, 0.0, 0.5]), p=2.0)
    tensor([0.0000, 0.2500, 0.7500])
    """
    return _of(SquaredPNorm, p, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
def fusedmax(
    x: Tensor,
    strength: Number = 0.1,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparse weights that are constant over contiguous segments.

    >>> fusedmax(torch.tensor([1.0, 1.1, 0.0, -1.0]), strength=0.2)
    tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    return _of(Fused, strength, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
def oscarmax(
    x: Tensor,
    strength: Number = 0.01,
    dim: int = -1,
    mask: Tensor | None = None,
    gamma: Number = 1.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sparse weights that are constant over clusters of entries anywhere in the row.

    >>> oscarmax(torch.tensor([1.0, -1.0, 1.05]), strength=0.1)
    tensor([0.5000, 0.0000, 0.5000])
    """
    return _of(Oscar, strength, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


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
    """Weights that are sparse by groups: those of a group shrink together, and whole groups become exactly 0.

    >>> groupedmax(torch.tensor([1.0, 0.9, 0.6, -1.0]), [0, 0, 1, 1], strength=0.5)
    tensor([0.5250, 0.4750, 0.0000, 0.0000])
    """
    return Grouped(groups, strength, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
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
    return _of(_bounded_shannon, gamma, lower, upper).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


@_check.no_integer_second
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
    return _of(_bounded_gini, gamma, lower, upper).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


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
    return _of(Budget, k, gamma).argmax(x if dtype is None else _cast(x, dtype), dim, mask)


def _bounded_shannon(gamma: Number, lower: Number, upper: Number) -> Bounded:
    return Bounded(Shannon(gamma), lower, upper)


def _bounded_gini(gamma: Number, lower: Number, upper: Number) -> Bounded:
    return Bounded(Gini(gamma), lower, upper)


def _of(kind: Callable[..., Regularizer], *parameters: Number) -> Regularizer:
    """The regularizer of these parameters: one of numbers is made, and checked, once."""
    for p in parameters:
        if type(p) is not float and type(p) is not int:
            return kind(*parameters)
    return kind(*parameters) if torch.compiler.is_compiling() else _made(kind, *parameters)


@lru_cache(maxsize=512, typed=True)
def _made(kind: Callable[..., Regularizer], *numbers: float) -> Regularizer:
    return kind(*numbers)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The scores in the dtype, like the argument of torch.softmax; later checks refuse objects that are not tensors."""
    return x.to(dtype) if isinstance(x, Tensor) else x
