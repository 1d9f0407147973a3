"""The smoothed maximum of linear scores with all logits at once: the specification."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.function import without_autocast
from polymax.backend.widen import wide
from polymax.kernels.linear_loss import FLAT, capacity
from polymax.kernels.linear_loss.problem import backward_of, problem_of
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold import reference as weights_reference
from polymax.kernels.tsallis_slope.reference import sensitivity


def capped_logits(x: Tensor, softcap: float) -> Tensor:
    """Return softcap tanh(x / softcap), or x itself without a softcap."""
    return softcap * torch.tanh(x / softcap) if softcap else x


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float) -> Tensor:
    """Return the logits of all words, at least in float32."""
    with without_autocast(hidden.device):
        x = wide(hidden) @ wide(weight).mT
    return capped_logits(x if bias is None else x + bias.to(x.dtype), softcap)


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


def linear_loss(*given: Any) -> tuple[Tensor, ...]:
    problem = problem_of(given)
    hidden, weight, bias, target, spread, alpha, _, softcap = problem
    x = logits(hidden, weight, bias, softcap)
    top = shift(x)
    p = weights_reference.threshold(x, alpha, TSALLIS)
    value, tau, slope = value_tau_slope(x, p, top, alpha, problem.sloped)
    z = x - top.unsqueeze(-1)
    chosen = mean = torch.zeros_like(value)
    if spread is not None:
        mean = z @ spread.to(z.dtype)
    if target is not None:
        chosen = z.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        value, chosen, mean = (torch.where(target < 0, 0, t) for t in (value, chosen, mean))
    n, size = len(hidden), capacity(len(weight))
    count = torch.full((n,), FLAT, dtype=torch.int32, device=x.device)
    ids, probs = count.new_zeros(n, size), value.new_zeros(n, size)
    extent = torch.tensor([n, 0], device="cpu")
    return value, chosen.clone(), mean.clone(), top, tau, slope, ids, probs, count, extent


def linear_loss_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    grads, problem, _, of_hidden, of_words = backward_of(given)
    hidden, weight, bias, target, spread, alpha, _, softcap = problem
    x = logits(hidden, weight, bias, softcap)
    p = weights_reference.threshold(x, alpha, TSALLIS)
    dx = grads.value.unsqueeze(-1) * p
    if spread is not None:
        dx = dx + grads.mean.unsqueeze(-1) * spread.to(dx.dtype)
    if target is not None:
        dx = dx.scatter_add(-1, target.clamp(min=0).unsqueeze(-1), grads.chosen.unsqueeze(-1))
        dx = torch.where(target.unsqueeze(-1) < 0, 0, dx)
    if softcap:
        dx = dx * (1 - (x / softcap).square())
    with without_autocast(hidden.device):
        dh = dx @ wide(weight) if of_hidden else dx.new_empty(0)
        dw = dx.mT @ wide(hidden) if of_words else dx.new_empty(0)
    return dh.to(hidden.dtype), dw.to(weight.dtype), dx.sum(0) if of_words else dx.new_empty(0)
