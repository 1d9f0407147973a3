"""Structured sparsity: neighbours (Fused) or any entries (Oscar) that share one weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import Gini, positive
from polymax.regularizers.fused_weights import per_row, step, weights


@dataclass(frozen=True)
class Fused(Regularizer):
    """Gini plus total variation: contiguous segments get one weight, bit-equal. The mapping is fusedmax.

        Omega(p) = (sum p^2 - 1) / 2 + strength sum |p_{i+1} - p_i|

    Masked entries are deleted: their neighbours become adjacent.

    Example:
        >>> Fused(strength=0.2).argmax(torch.tensor([1.0, 1.1, 0.0, -1.0]))
        tensor([0.5000, 0.5000, 0.0000, 0.0000])

    See: Niculae and Blondel 2017, Proposition 2: sparsemax of the total-variation prox.
    """

    strength: float | Tensor = 0.1
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.strength, "strength", "at least 0", lambda s: s >= 0)
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        return weights(x, self.strength, ordered=False)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        variation = step(p, keep).abs().sum(-1)
        return Gini().omega_rows(p) + per_row(self.strength, p) * variation


@dataclass(frozen=True)
class Oscar(Regularizer):
    """Gini plus pairwise maxima: entries anywhere in the row share one weight, bit-equal. The mapping is oscarmax.

        Omega(p) = (sum p^2 - 1) / 2 + strength sum_{i<j} max(p_i, p_j)

    Example:
        >>> Oscar(strength=0.1).argmax(torch.tensor([1.0, -1.0, 1.05]))
        tensor([0.5000, 0.0000, 0.5000])

    See: Niculae and Blondel 2017, Proposition 3; Zeng and Figueiredo 2014 for the prox.
    """

    strength: float | Tensor = 0.01
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check.number(self.strength, "strength", "at least 0", lambda s: s >= 0)
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        return weights(x, self.strength, ordered=True)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        present = torch.full(p.shape[:-1], p.shape[-1], device=p.device) if keep is None else keep.sum(-1)
        # in decreasing order, the i-th entry is the larger one of m - i pairs; absent entries are 0 and come last
        ordered = p.sort(-1, descending=True).values
        pairs = (present.unsqueeze(-1) - 1 - torch.arange(p.shape[-1], device=p.device)).clamp(min=0)
        return Gini().omega_rows(p) + per_row(self.strength, p) * (ordered * pairs).sum(-1)
