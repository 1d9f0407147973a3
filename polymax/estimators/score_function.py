"""The score-function estimator: expected losses from samples, for losses of any kind."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polymax import _check
from polymax._parts import checked_scores, map_parts, narrow
from polymax.backend.widen import wide
from polymax.estimators.baselines import Baseline, Situation
from polymax.estimators.expected_loss import LossFn, losses_of, reduce_values, value_with_gradient
from polymax.estimators.joint import JointLoss, together
from polymax.estimators.policies import Policy, policy_of
from polymax.regularizers import Regularizer
from polymax.smoothing import Smoothing
from polymax.structures.base import Parts, Structure, tensors


@dataclass(frozen=True, eq=False)
class Draws:
    """The draws of a batch, with their losses and advantages.

    Shapes: losses, advantages (without gradient), log_probs and counted (False for instances without a structure): all
    (samples, *batch)
    """

    policy: Policy
    actions: Any
    joint: bool
    losses: Tensor
    advantages: Tensor
    log_probs: Tensor
    counted: Tensor
    # the expected loss, with gradients in the parameters of the loss function and of the baseline
    loss: Tensor

    def log_probs_under(self, *scores: Tensor) -> Tensor:
        """The log-probabilities of the drawn structures under other scores, (samples, *batch)."""
        return together(self.policy.actions(*checked_scores(scores)).log_prob(self.actions), self.joint)


class ScoreFunction(nn.Module):
    """REINFORCE: the expected loss under a distribution over structures, estimated from draws.

        value: mean of L(y),        gradient: mean of dL(y) + (L(y) - b) d log p(y),        y ~ p

    Given a smoothing, p is its distribution; given a regularizer, its mapping on the simplex; given a structure, its
    Marginals. If the set has no Marginals to draw from (Assignment, a set with only `map`), scores are perturbed, as by
    Perturbed, and p is the density of the perturbed scores. `baseline` is None for b = 0. With a `JointLoss`, y are the
    structures of a group, drawn independently.

    Shapes: loss_fn(y (count, ...), at (count,)) -> (count,), `at` the instances in the flattened batch that structures
    y are drawn for; the result (), or (*batch,), with 0 for an instance without a structure

    Example:
        >>> estimator = ScoreFunction(pm.Simplex(), pm.LeaveOneOut(), samples=1000)
        >>> scores = torch.tensor([1.0, 0.0], requires_grad=True)
        >>> loss = estimator(lambda y, at: y[:, 0], scores, generator=torch.Generator().manual_seed(0))
        >>> round(loss.item(), 3), torch.autograd.grad(loss, scores)  # the truth is 0.731, and 0.1966
        (0.727, (tensor([ 0.1987, -0.1987]),))

    See: Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.
    """

    def __init__(
        self,
        structure: Structure | Smoothing | Regularizer | Policy,
        baseline: Baseline | None = None,
        samples: int = 1,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if baseline is not None and not isinstance(baseline, Baseline):
            raise TypeError(f"baseline must be a Baseline or None; got {type(baseline).__name__}")
        _check.whole(samples, "samples")
        self.policy = policy_of(structure)
        self.baseline = baseline
        self.samples = samples
        self.reduction = _check.reduction(reduction)

    def forward(
        self,
        loss_fn: LossFn | JointLoss,
        *scores: Tensor,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The expected loss, ready for backward; `features` are the inputs of a baseline in place of the scores."""
        draws = self.collect(loss_fn, *scores, features=features, generator=generator)
        return value_with_gradient(
            draws.loss, reduce_values((draws.advantages * draws.log_probs).mean(0), self.reduction)
        )

    def collect(
        self,
        loss_fn: LossFn | JointLoss,
        *scores: Tensor,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Draws:
        """Draws with their losses, of which `forward` is made."""
        x = checked_scores(scores)
        found = self.policy.actions(*x)
        actions = found.sample((self.samples,), generator=generator)
        y = narrow(self.policy.chosen(actions), scores[0].dtype)
        each = found.log_prob(actions)
        joint = isinstance(loss_fn, JointLoss)
        log_probs = together(each, joint)
        # an instance without a structure has a sum of 0, and its draws do not count
        counted = ~torch.isinf(log_probs)
        given = _losses(loss_fn, y, each.shape)
        losses = torch.where(counted, wide(given), 0)
        detached = tuple(t.detach() for t in x)

        def best_losses() -> Tensor:
            with torch.no_grad():
                best = narrow(self.policy.structure.map(*detached), scores[0].dtype)
                return _losses(loss_fn, map_parts(lambda t: t.unsqueeze(0), best), each[:1].shape)[0]

        seen = detached if features is None else (features.detach(),)
        compared = losses.detach()
        if self.baseline is not None:
            compared = self.baseline(compared, Situation(seen, best_losses, counted))
        advantages = torch.where(counted, compared, 0)
        values = losses.mean(0)
        if advantages.requires_grad:
            values = value_with_gradient(values, advantages.square().mean(0))
        return Draws(
            self.policy,
            actions,
            joint,
            losses,
            advantages.detach(),
            torch.where(counted, log_probs, 0),
            counted,
            reduce_values(values, self.reduction).to(given.dtype),
        )

    def with_lengths(self, lengths: Any) -> "ScoreFunction":
        """A copy for a batch of these lengths; it shares the baseline."""
        return ScoreFunction(self.policy.with_lengths(lengths), self.baseline, self.samples, self.reduction)

    def extra_repr(self) -> str:
        return f"{self.policy}, samples={self.samples}, reduction={self.reduction!r}"


def _losses(loss_fn: LossFn | JointLoss, y: Parts, shape: torch.Size) -> Tensor:
    """The losses (samples, *batch) of structures (samples, *batch, ...); for a `JointLoss`, one loss for each group."""
    count = shape[1:].numel()
    at = torch.arange(count, device=tensors(y)[0].device).repeat(shape[0])
    flat = map_parts(lambda t: t.reshape(at.numel(), *t.shape[len(shape) :]), y)
    if isinstance(loss_fn, JointLoss):
        members = torch.arange(at.numel(), device=at.device).reshape(-1, shape[-1])
        groups = at[members[:, 0]] // shape[-1]
        return loss_fn.combination_losses(flat, at, members, groups).reshape(shape[:-1])
    return losses_of(loss_fn, flat, at).reshape(shape)
