"""Temperatures: the maximum smoothed by gamma Omega is gamma times the maximum of scores / gamma smoothed by Omega."""

import torch
from torch import Tensor

from polymax.structures.base import Structure


def scaled_scores(structure: Structure, scores: tuple[Tensor, ...], gamma: float | Tensor) -> tuple[Tensor, ...]:
    """scores / gamma; gamma is a number, or a tensor that broadcasts to (*batch,)."""
    if not isinstance(gamma, Tensor):
        return scores if gamma == 1 else tuple(x / gamma for x in scores)
    return tuple(_divide(x, gamma, dims) for x, dims in zip(scores, structure.event_dims(*scores), strict=True))


def restore_scale(value: Tensor, gamma: float | Tensor) -> Tensor:
    """gamma times a value; a value of -inf has no derivative in gamma."""
    if not isinstance(gamma, Tensor):
        return value if gamma == 1 else value * gamma
    dead = value == -torch.inf
    return torch.where(dead, value, torch.where(dead, 0, value) * gamma)


def _divide(x: Tensor, gamma: Tensor, dims: int) -> Tensor:
    by = gamma.to(x.dtype).reshape(*gamma.shape, *[1] * dims) if gamma.dim() else gamma.to(x.dtype)
    # a forbidden part stays out of the derivative in gamma, where it would be inf * 0
    keep = x > -torch.inf
    return torch.where(keep, torch.where(keep, x, 0) / by, x)
