"""Norms of p: the p-norm itself, and half its square."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.threshold import NORM, SQUARED_NORM
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import positive
from polymax.regularizers.threshold import threshold


@dataclass(frozen=True)
class Norm(Regularizer):
    """The alpha-norm. Its mapping, normmax, is sparse; the larger alpha is, the less sparse.

        Omega(p) = norm_alpha(p) - 1

    Example:
        >>> Norm().argmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.3110, 0.6890])

    See: Blondel, Martins and Niculae 2020, Learning with Fenchel-Young losses, section 4.3.
    """

    zero_at_vertices = True
    alpha: float | Tensor = 2.0
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.alpha, "alpha", "greater than 1 and finite", lambda a: (a > 1) & (a < math.inf))
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        return threshold(x, self.alpha, NORM, _norm_sensitivity)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return torch.exp(_log_norm(p, self.alpha)[1].squeeze(-1)) - 1


@dataclass(frozen=True)
class SquaredPNorm(Regularizer):
    """Half the squared p-norm. Its mapping is sq_pnorm_max, which for p = 2 is sparsemax.

        Omega(q) = (norm_p(q)^2 - 1) / 2

    Example:
        >>> SquaredPNorm(p=2.0).argmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])

    See: Niculae and Blondel 2017, A regularized framework for sparse and structured neural attention, section 3.2.
    """

    zero_at_vertices = True
    p: float | Tensor = 1.5
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.p, "p", "greater than 1 and finite", lambda p: (p > 1) & (p < math.inf))
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        return threshold(x, self.p, SQUARED_NORM, _squared_norm_sensitivity)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return (torch.exp(2 * _log_norm(p, self.p)[1].squeeze(-1)) - 1) / 2


def _log_norm(y: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log y (0 outside the support), log norm_alpha(y), and the derivative of the latter in alpha."""
    alpha = torch.as_tensor(alpha, dtype=y.dtype, device=y.device)
    log = torch.log(torch.where(y > 0, y, 1))
    some = (y > 0).any(-1, keepdim=True)
    # powers of small weights are 0 in y's dtype, so that only their logs are taken
    powers = torch.where(some, torch.where(y > 0, alpha * log, -torch.inf), 0)
    log_norm = torch.where(some, powers.logsumexp(-1, keepdim=True) / alpha, 0)
    return log, log_norm, ((powers.softmax(-1) * log).sum(-1, keepdim=True) - log_norm) / alpha


def _norm_sensitivity(y: Tensor, alpha: Tensor) -> Tensor:
    # the gradient of Omega is (y / norm)^(alpha - 1)
    log, log_norm, slope = _log_norm(y, alpha)
    a = alpha.to(y.dtype)
    return torch.exp((a - 1) * (log - log_norm)) * (log - log_norm - (a - 1) * slope)


def _squared_norm_sensitivity(y: Tensor, p: Tensor) -> Tensor:
    # the gradient of Omega is norm^(2 - p) y^(p - 1)
    log, log_norm, slope = _log_norm(y, p)
    p = p.to(y.dtype)
    return torch.exp((2 - p) * log_norm + (p - 1) * log) * (log - log_norm + (2 - p) * slope)
