"""The Fenchel-Young loss over structures, given a complete or a partial target."""

from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores
from polymax.losses import sharded
from polymax.losses.targets import Target, Whole, target_of
from polymax.sharding.placements import any_sharded
from polymax.smoothing import Smoothing


def of_structures(
    smooth: Smoothing, scores: Any, y: Any, cost: Any, reduction: str, generator: torch.Generator | None
) -> Tensor:
    """The loss max(scores + cost) + Omega(y) - <scores, y>, reduced over instances."""
    inputs = as_tuple(scores)
    if any_sharded(inputs):
        return sharded.of_structures(
            lambda op, x, target, c: of_structures(op, x, target, c, "none", generator), smooth, inputs, y, cost,
            reduction,
        )  # fmt: skip
    wide = checked_scores(inputs)
    found = losses(smooth, wide, target_of(smooth.structure, wide, y), cost, generator)
    return reduce_losses(found, reduction).to(inputs[0].dtype)


def losses(
    smooth: Smoothing,
    scores: tuple[Tensor, ...],
    target: Target,
    cost: Any,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss of each instance, (*batch,)."""
    # costs are added to scores less those of the target: to large scores they would be rounded
    found = smooth.loss_at(target.index, *scores) if cost is None and isinstance(target, Whole) else None
    if found is not None:
        return found
    compared = target.two_sides(smooth, scores)
    gold = torch.where(compared.gold == -torch.inf, 0, compared.gold)
    # only a maximum that draws noise takes a generator
    noise: Any = {} if generator is None else {"generator": generator}
    loss = smooth.max(*with_cost(compared.scores, cost), **noise) - gold
    # a loss below the rounding errors of its terms is 0
    noise = loss.detach().abs() <= 32 * torch.finfo(torch.float64).eps * compared.size
    loss = loss - torch.where(noise, loss.detach(), 0)
    return torch.where(compared.gold == -torch.inf, torch.inf, loss)


def as_tuple(scores: Any) -> tuple[Tensor, ...]:
    """Scores as a tuple of tensors."""
    if isinstance(scores, Tensor):
        return (scores,)
    if not isinstance(scores, tuple | list) or not scores:
        raise TypeError(f"scores must be a tensor or a tuple of tensors; got {type(scores).__name__}")
    return tuple(scores)


def with_cost(scores: tuple[Tensor, ...], cost: Any) -> tuple[Tensor, ...]:
    """Scores plus costs: a cost for the first tensor, or a tuple of costs, in which None stands for zeros."""
    if cost is None:
        return scores
    costs = (cost,) if isinstance(cost, Tensor) else cost
    if not isinstance(costs, tuple | list) or len(costs) > len(scores):
        came = f"{len(costs)}" if isinstance(costs, tuple | list) else type(cost).__name__
        raise TypeError(f"cost must be a tensor or a tuple of at most {len(scores)}; got {came}")
    added = list(scores)
    for k, c in enumerate(costs):
        if c is not None:
            _check.broadcasts(c, scores[k], "cost")
            added[k] = scores[k] + c.to(scores[k].dtype)
    return tuple(added)


def reduce_losses(losses: Tensor, reduction: str) -> Tensor:
    """The mean or the sum of the losses, or all of them."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none'; got {reduction!r}")
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
