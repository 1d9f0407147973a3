"""Choices of one of n at each step: the best score, a draw, or an estimator with gradients."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.estimators.base import Estimator, NoisyEstimator
from polymax.noise import Gumbel
from polymax.smoothing import HardMax, Marginals, Smoothing

Policy = Smoothing | Estimator


def checked_policy(policy: Any) -> Policy:
    """The policy, which must be HardMax, Marginals, or an estimator such as StraightThrough, each of Simplex()."""
    if not isinstance(policy, HardMax | Marginals | Estimator) or not policy.structure.one_part:
        raise TypeError(
            f"policy must be HardMax, Marginals or an estimator such as StraightThrough, of Simplex(); got {policy!r}"
        )
    return policy


def choose(policy: Policy, scores: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Choose one of n: an indicator shaped like scores (*batch, n), zeros if all scores are -inf.

    HardMax chooses the best, the first of equal scores. Marginals draws from softmax(scores / gamma). Neither has a
    gradient. An estimator has its own.

    Example:
        >>> choose(pm.HardMax(pm.Simplex()), torch.tensor([0.0, 2.0, 1.0]))
        tensor([0., 1., 0.])
    """
    match policy:
        case NoisyEstimator():
            return policy(scores, generator=generator)
        case Estimator():
            return policy(scores)
    x = scores.detach()
    if isinstance(policy, Marginals):
        # the largest of scores with Gumbel noise is a draw of their softmax
        x = x / temperature(policy) + Gumbel().sample(x, generator=generator)
    best = torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1) if x.shape[-1] else x
    return torch.where((scores != -torch.inf).any(-1, keepdim=True), best, 0)


def temperature(policy: Policy) -> Any:
    """The temperature of the probabilities of choices: gamma if choices are drawn, else 1."""
    match policy:
        case Marginals(gamma=gamma) | NoisyEstimator(gamma=gamma):
            return gamma
    return 1.0


def log_probs(scores: Tensor) -> Tensor:
    """log softmax(scores) over the last dim, at least in float32; rows of only -inf stay so, with a gradient of 0.

    Sums over steps, and differences of such sums, need the digits of float32.
    """
    scores = wide(scores)
    some = (scores != -torch.inf).any(-1, keepdim=True)
    return torch.where(some, torch.log_softmax(torch.where(some, scores, 0), -1), -torch.inf)


def chosen_log_prob(log_p: Tensor, y: Tensor) -> Tensor:
    """The log-probability (*batch,) of the choices y (*batch, n); 0 if y is 0."""
    return torch.where(y.detach() > 0, log_p, 0).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """- sum of p log p, (*batch,); 0 if there is no choice."""
    possible = log_p != -torch.inf
    finite = torch.where(possible, log_p, 0)
    return -(torch.where(possible, finite.exp(), 0) * finite).sum(-1)
