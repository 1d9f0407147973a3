"""Expected losses as sums over few structures: exact, without sampling."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores, map_parts, narrow
from polymax.backend.widen import wide
from polymax.estimators.expected_loss import LossFn, losses_of, reduce_values
from polymax.estimators.joint import JointLoss, combinations, refuse_single
from polymax.estimators.policies import check_distribution, smoothing_of
from polymax.regularizers import Regularizer
from polymax.smoothing import Smoothing
from polymax.smoothing.sparse_map import SparseMap
from polymax.solvers.finite import Finite
from polymax.structures.base import Parts, Structure


@dataclass(frozen=True, eq=False)
class SparseExpectation:
    """The expected loss under a sparse distribution, summed over its support.

        E[L] = sum over y with p(y) > 0 of p(y) L(y),        dE = sum p dL + sum L dp

    A structure stands for its SparseMap, a smoothing for its distribution, which must be small enough to list, and a
    regularizer for its mapping on the simplex. The loss is evaluated once, on all structures of positive probability
    together and on no others; gradients are exact on both sides. With a `JointLoss` the sum is over all combinations.

    Shapes: loss_fn(y (count, ...), at (count,)) -> (count,), `at` the instances in the flattened batch that structures
    y belong to; the result (), or (*batch,), with 0 for an instance without a structure

    Example:
        >>> cost = torch.tensor([[0.0, 1.0, 5.0]])
        >>> scores = torch.tensor([[0.2, 0.0, -1.0]])
        >>> SparseExpectation(pm.Simplex())(lambda y, at: (y * cost[at]).sum(-1), scores)
        tensor(0.4000)

    See: Correia et al. 2020, Efficient marginalization of discrete and structured latent variables via sparsity.
    """

    structure: Structure | Smoothing | Regularizer
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _check.reduction(self.reduction)
        check_distribution(self.smooth)

    @property
    def smooth(self) -> Smoothing:
        """The smoothing under whose distribution the loss is expected."""
        return smoothing_of(self.structure, SparseMap)

    def __call__(self, loss_fn: LossFn | JointLoss, *scores: Tensor) -> Tensor:
        """The expected loss, ready for backward."""
        smooth, dtype = self.smooth, scores[0].dtype
        y, p = _support_of(smooth, checked_scores(scores))
        y, chosen = narrow(y, dtype), p != 0
        at = chosen.reshape(p.shape[:-1].numel(), p.shape[-1]).nonzero(as_tuple=True)[0]
        if isinstance(loss_fn, JointLoss):
            refuse_single(p.shape[:-1])
            chosen, members, groups = combinations(chosen)
            losses, weights = loss_fn.combination_losses(y, at, members, groups), p.unbind(-2)
        else:
            losses, weights = losses_of(loss_fn, y, at), (p,)
        # every loss has a place of its own, so that the order of the sum is fixed
        values = wide(losses).new_zeros(chosen.shape).masked_scatter(chosen, wide(losses))
        for i, weight in reversed(list(enumerate(weights))):
            values = (weight.reshape(*weight.shape[:-1], *[1] * i, weight.shape[-1]) * values).sum(-1)
        return reduce_values(values.to(losses.dtype), self.reduction)

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        return replace(self, structure=self.smooth.with_lengths(lengths))


def _support_of(smooth: Any, scores: tuple[Tensor, ...]) -> tuple[Parts, Tensor]:
    """The structures of nonzero probability (count, ...), also of NaN, and the probabilities (*batch, k)."""
    if smooth.structure.one_part:
        p = smooth.argmax(*scores)
        return torch.nn.functional.one_hot((p != 0).nonzero()[:, -1], p.shape[-1]).to(p.dtype), p
    found = smooth.distribution(*scores)
    if isinstance(found, Finite):
        return found.listed()
    y, p = found.support()
    return map_parts(lambda t: t[p != 0], y), p
