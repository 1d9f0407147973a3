"""The smoothed maximum of linear scores with all logits at once: the specification."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.function import without_autocast
from polymax.backend.widen import wide
from polymax.kernels.linear_loss import FLAT, capacity
from polymax.kernels.linear_loss.problem import Grads, LossProblem, Parts, backward_of, problem_of, slopes_of
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold import reference as weights_reference
from polymax.kernels.tsallis_slope.reference import sensitivity


def capped_logits(x: Tensor, softcap: float, scale: float = 1.0) -> Tensor:
    """Return scale softcap tanh(x / softcap), or scale x without a softcap."""
    x = softcap * torch.tanh(x / softcap) if softcap else x
    return x if scale == 1 else scale * x


def cap_slope(x: Tensor, softcap: float, scale: float) -> Tensor | float:
    """Return the derivative of scores x = scale softcap tanh(l / softcap) in the logits l."""
    return scale * (1 - (x / (scale * softcap)).square()) if softcap else scale


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, scale: float = 1.0) -> Tensor:
    """Return the scores of all words, at least in float32."""
    with without_autocast(hidden.device):
        x = wide(hidden) @ wide(weight).mT
    return capped_logits(x if bias is None else x + bias.to(x.dtype), softcap, scale)


def shift(x: Tensor) -> Tensor:
    """Return the row maximum, which is subtracted from the row; 0 if it is not finite."""
    top = x.amax(-1)
    return torch.where(top.isfinite(), top, 0)


def value_tau_slope(x: Tensor, p: Tensor, top: Tensor, alpha: float, sloped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, tau and slope of rows x with the weights p.

    On the support p^(alpha-1) = z - tau with z = (alpha-1) (x - top), so that sum p^alpha = <z, p> - tau.
    """
    a = alpha - 1
    z = torch.where(p == 0, 0, x - top.unsqueeze(-1))
    mean, most = (p * z).sum(-1), p.amax(-1)
    if a == 0:
        value = tau = -torch.log(most)
    else:
        tau = -(most**a)
        value = a * mean / alpha + (tau + 1) / (alpha * a)
    # a row of -inf has no weights
    dead = (x == -torch.inf).all(-1)
    slope = torch.zeros_like(value)
    if sloped:
        # the derivative of -Omega in alpha, at the same weights
        moved = (p * sensitivity(p, torch.as_tensor(alpha, dtype=p.dtype, device=p.device))).sum(-1)
        slope = torch.where(dead, 0, (mean - value - moved) / alpha)
    return torch.where(dead, -torch.inf, value), tau, slope


def first_moment(z: Tensor, p: Tensor) -> Tensor:
    """Return <z, p>, in which words without weight have no part."""
    return (p * torch.where(p == 0, 0, z)).sum(-1)


def spread_mean(z: Tensor, spread: Tensor) -> Tensor:
    """Return the sum over words of spread z, in which words of spread 0 have no part."""
    spread = spread.to(z.dtype)
    return torch.where(spread == 0, 0, z * spread).sum(-1)


def linear_loss(*given: Any) -> tuple[Tensor, ...]:
    return _solved(problem_of(given))[0]


def _solved(problem: LossProblem) -> tuple[Parts, Tensor, Tensor]:
    """Return the parts, and the scores and weights of all words."""
    hidden, weight, bias, named, spread, alpha, _, softcap, scale = problem
    x = logits(hidden, weight, bias, softcap, scale)
    top = shift(x)
    p = weights_reference.threshold(x, alpha, TSALLIS)
    value, tau, slope = value_tau_slope(x, p, top, alpha, problem.sloped)
    z = x - top.unsqueeze(-1)
    moment = first_moment(z, p) if alpha == 1 else torch.zeros_like(value)
    mean = torch.zeros_like(value) if spread is None else spread_mean(z, spread)
    n, size = len(hidden), capacity(len(weight))
    chosen = z.new_zeros(n, 0)
    if named is not None:
        chosen = torch.where(named < 0, 0, z.gather(-1, named.clamp(min=0)))
        counted = problem.counted
        value, mean, moment = (torch.where(counted, t, 0) for t in (value, mean, moment))
    count = torch.full((n,), FLAT, dtype=torch.int32, device=x.device)
    ids, probs = count.new_zeros(n, size), value.new_zeros(n, size)
    extent = torch.tensor([n, 0], device="cpu")
    return Parts(value, chosen, mean.clone(), moment, top, tau, slope, ids, probs, count, extent), x, p


def linear_loss_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    grads, problem, _, of_hidden, of_words = backward_of(given)
    return _gradients(grads, problem, *_solved(problem), of_hidden, of_words)


def linear_loss_slopes(*given: Any) -> tuple[Tensor, ...]:
    grads, problem, of_hidden, of_words = slopes_of(given)
    parts, x, p = _solved(problem)
    return *parts[:3], *_gradients(grads, problem, parts, x, p, of_hidden, of_words)


def linear_loss_scale(x: Tensor, factor: Tensor) -> None:
    x.mul_(factor)


def _gradients(
    grads: Grads, problem: LossProblem, parts: Parts, x: Tensor, p: Tensor, of_hidden: bool, of_words: bool
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, _, named, spread, alpha, _, softcap, scale = problem
    dx = grads.value.unsqueeze(-1) * p
    if grads.moment is not None and alpha == 1:
        z = torch.where(p == 0, 0, x - parts.top.unsqueeze(-1))
        dx = dx + grads.moment.unsqueeze(-1) * p * (1 + z - parts.moment.unsqueeze(-1))
    if spread is not None:
        dx = dx + grads.mean.unsqueeze(-1) * spread.to(dx.dtype)
    if named is not None:
        dx = dx.scatter_add(-1, named.clamp(min=0), torch.where(named < 0, 0, grads.chosen).to(dx.dtype))
        dx = torch.where(problem.counted.unsqueeze(-1), dx, 0)
    dx = dx * cap_slope(x, softcap, scale)
    with without_autocast(hidden.device):
        dh = dx @ wide(weight) if of_hidden else dx.new_empty(0)
        dw = dx.mT @ wide(hidden) if of_words else dx.new_empty(0)
    return dh.to(hidden.dtype), dw.to(weight.dtype), dx.sum(0) if of_words else dx.new_empty(0)
