"""Losses of several structures at once, such as the trees of two sentences that are compared."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax.estimators.expected_loss import losses_of
from polymax.structures.base import Parts


@dataclass(frozen=True, eq=False)
class JointLoss:
    """A loss of groups of structures, which estimators take in place of a loss function; structures are independent.

        E[L] = sum over y_1, ..., y_g of p(y_1) ... p(y_g) loss(f(y_1), ..., f(y_g)),        f = each

    Instances along the last dimension of the batch are a group. f is evaluated once for each structure, the loss once
    for each combination. SparseExpectation has as many combinations as the product of the support sizes in a group, and
    holds all of them at once; ScoreFunction draws one structure for each instance, and SelfCritical compares them with
    the best of each.

    Shapes: scores (*batch, g, ...); each(y (count, ...), at (count,)) -> (count, ...), as a loss function, but values
    of any shape; loss(values (m, g, ...), at (m,)) -> (m,), `at` the groups in the flattened batch; the estimator's
    result () or (*batch,), with 0 for a group of which an instance has no structure

    Example:
        >>> same = pm.JointLoss(lambda y, at: y, lambda y, at: (y[:, 0] * y[:, 1]).sum(-1))
        >>> scores = torch.tensor([[[0.2, 0.0, -1.0], [0.0, 1.0, -1.0]]])
        >>> pm.SparseExpectation(pm.Simplex())(same, scores)  # [0.6, 0.4, 0] and [0, 1, 0]
        tensor(0.4000)
    """

    each: Callable[[Parts, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]

    def combination_losses(self, y: Parts, at: Tensor, members: Tensor, groups: Tensor) -> Tensor:
        """The losses (m,) of combinations members (m, g), places in y (count, ...), for groups (m,)."""
        values = self.each(y, at)
        if not isinstance(values, Tensor) or values.shape[:1] != at.shape:
            raise ValueError(f"each must return ({len(at)}, ...), values of each structure; got {_check.shape(values)}")
        # the backward of indexing adds up gradients in a fixed order on every device
        return losses_of(self.loss, values[members], groups)


def together(log_probs: Tensor, joint: bool) -> Tensor:
    """Log-probabilities (samples, *batch) of draws, added up over groups if the loss is a `JointLoss`."""
    if not joint:
        return log_probs
    refuse_single(log_probs.shape[1:])
    return log_probs.sum(-1)


def refuse_single(batch: torch.Size) -> None:
    """Raise ValueError if the batch is a single instance, without a group."""
    if not batch:
        raise ValueError("scores must be (*batch, g, ...) for a JointLoss; got a single instance")


def combinations(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All combinations of chosen structures, one of each instance of a group.

    Shapes: chosen (*batch, g, k), bool; results: a bool tensor (*batch, k, ..., k), k repeated g times, True for these
    combinations; their members (m, g), places among the chosen structures; and their groups (m,)

    Example:
        >>> combinations(torch.tensor([[[True, False], [True, True]]]))[1]
        tensor([[0, 1],
                [0, 2]])
    """
    *batch, g, k = chosen.shape
    kept = chosen[..., 0, :]
    for i in range(1, g):
        kept = kept.unsqueeze(-1) & chosen[..., i, :].reshape(*batch, *[1] * i, k)
    place = (chosen.flatten().cumsum(0) - 1).reshape(-1, g, k)
    groups, *columns = kept.reshape(len(place), *[k] * g).nonzero(as_tuple=True)
    members = torch.stack([place[groups, i, column] for i, column in enumerate(columns)], -1)
    return kept, members, groups
