"""Baselines, which are subtracted from losses to reduce the variance of the score-function estimator.

    E[(L(y) - b) grad log p(y)] = E[L(y) grad log p(y)]        for every b that does not depend on y

Write your own baseline as a class with a method `forward`, which turns losses into advantages L - b.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Situation:
    """The inputs of a baseline besides the losses.

    `features` are the features given to the estimator, or the scores. `best_losses()` computes the losses (*batch,) of
    the best structures. `counted` (samples, *batch) is False for instances without a structure, which have no loss.
    None of these has a gradient.
    """

    features: tuple[Tensor, ...]
    best_losses: Callable[[], Tensor]
    counted: Tensor


class Baseline(nn.Module, ABC):
    """A function from losses to advantages.

    If advantages have a gradient in parameters of the baseline, backward on the estimator's result also has the
    gradient of their squared error. Baselines change only in training mode.
    """

    @abstractmethod
    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        """The advantages L - b of losses L (samples, *batch)."""


class RunningMean(nn.Module):
    """The mean of values over calls, weighted by decay^t for the values of t calls ago.

    Example:
        >>> mean = RunningMean(decay=0.5)
        >>> mean.add(torch.tensor([1.0, 3.0])), mean.add(torch.tensor([5.0]))
        (None, None)
        >>> mean.value  # 2 with weight 1/3, 5 with weight 2/3
        tensor(4.)
    """

    total: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1); got {decay!r}")
        self.decay = float(decay)
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    @property
    def value(self) -> Tensor:
        """The mean of the added values; 0 before the first call."""
        return self.total / torch.where(self.weight > 0, self.weight, 1)

    def add(self, values: Tensor) -> None:
        """Add the mean of these values, without NaN and infinities, which would reach all later calls."""
        kept = torch.isfinite(values)
        count = kept.sum()
        mean = torch.where(kept, values, 0).sum() / count.clamp(min=1)
        step = torch.where(count > 0, 1 - self.decay, 0).to(self.total)
        self.total.lerp_(mean.to(self.total), step)
        self.weight.lerp_(torch.ones_like(self.weight), step)

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class MovingAverage(Baseline):
    """The baseline b is a running mean of the losses of earlier calls, and 0 at the first.

    Example:
        >>> estimator = pm.ScoreFunction(pm.Simplex(), MovingAverage(decay=0.9))
        >>> loss = estimator(lambda y, at: torch.full((len(at),), 3.0), torch.zeros(4, 5))
        >>> estimator.baseline.mean.value
        tensor(3.)
    """

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.mean = RunningMean(decay)

    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        advantages = losses - self.mean.value.to(losses)
        if self.training:
            self.mean.add(torch.where(situation.counted, losses, torch.nan))
        return advantages


class SelfCritical(Baseline):
    """The baseline b is the loss of the best structure, which prediction would use.

    Example:
        >>> estimator = pm.ScoreFunction(pm.Chain(), SelfCritical())

    See: Rennie et al. 2017, Self-critical sequence training for image captioning.
    """

    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        return losses - situation.best_losses().to(losses)


class LeaveOneOut(Baseline):
    """The baseline b is the mean loss of the other draws for the same instance, of which there must be at least one.

    Example:
        >>> estimator = pm.ScoreFunction(pm.Chain(), LeaveOneOut(), samples=4)

    See: Kool, van Hoof and Welling 2019, Buy 4 REINFORCE samples, get a baseline for free!
    """

    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        others = losses.shape[0] - 1
        if others < 1:
            raise ValueError("LeaveOneOut needs samples of at least 2; got 1")
        return losses - (losses.sum(0) - losses) / others


class Learned(Baseline):
    """The baseline b is a module's prediction of the loss from the input.

        b = module(*scores), or module(features) if the estimator is given features; (*batch,)

    It is trained by the squared error, whose gradient comes with that of the estimator; its input gets none.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0))
        >>> estimator = pm.ScoreFunction(pm.Simplex(), Learned(net))
        >>> estimator(lambda y, at: y[:, 0], torch.zeros(4, 5)).backward()
        >>> net[0].bias.grad is None
        False

    See: Mnih and Gregor 2014, Neural variational inference and learning in belief networks, section 2.3.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        b = self.module(*situation.features)
        if b.shape != losses.shape[1:]:
            raise ValueError(f"the module of Learned must return {tuple(losses.shape[1:])}; got {tuple(b.shape)}")
        return losses - b.to(losses)


class Normalized(Baseline):
    """The advantages of another baseline, divided by their running root mean square over earlier calls.

    Steps then have one size, whatever the scale of the loss; the direction of the gradient is not changed.

    Example:
        >>> estimator = pm.ScoreFunction(pm.Chain(), Normalized(SelfCritical()))

    See: Mnih and Gregor 2014, section 2.3.
    """

    def __init__(self, baseline: Baseline, decay: float = 0.9) -> None:
        super().__init__()
        self.baseline = baseline
        self.square = RunningMean(decay)

    def forward(self, losses: Tensor, situation: Situation) -> Tensor:
        advantages = self.baseline(losses, situation)
        square = self.square.value.to(losses)
        if self.training:
            self.square.add(torch.where(situation.counted, advantages.detach().square(), torch.nan))
        # the scale is 1 before the first call, and if all advantages were 0
        return advantages / torch.where(square > 0, square, 1).sqrt()
