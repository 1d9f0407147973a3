"""Sparsemax over the k best structures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.regularizers import Gini
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.hard_max import HardMax
from polymax.smoothing.temperature import restore_scale, scaled_scores
from polymax.solvers.finite import Finite
from polymax.solvers.undefined import instances, nan_of, undefined_parts
from polymax.structures.base import Parts, Sampled, tensors


@dataclass(frozen=True, eq=False)
class TopKSparsemax(Smoothing):
    """Sparsemax over the k best whole structures.

        argmax over p in the simplex of Y, at most k of them not 0, of  sum_y p_y <scores, y> - gamma / 2 (sum p^2 - 1)

    If fewer than k have weight, it is the sparsemax over all structures. SparseMap, in contrast, penalises the mean of
    the structures and not their weights.

    Example:
        >>> TopKSparsemax(pm.Subset(2), k=4).distribution(torch.tensor([1.0, 0.2, 0.1, -3.0])).probs
        tensor([0.5500, 0.4500, 0.0000, 0.0000])

    See: Correia et al. 2020, Efficient marginalization of discrete and structured latent variables via sparsity.
    """

    structure: Any
    k: int
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Sampled):
            raise TypeError(f"{type(self.structure).__name__} cannot list its k best structures")
        _check.whole(self.k, "k")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        _, values, _ = self._best(scores)
        return restore_scale(Gini().max(values), self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        return self.distribution(*scores).mean

    def omega(self, mu: Parts) -> Tensor:
        """Omega(mu), (*batch,): it is 0 at structures, and has no closed form between them."""
        if not self.structure.compact.whole(mu):
            raise UnknownOmega("the Omega of TopKSparsemax has no closed form away from structures")
        return HardMax(self.structure).omega(mu)

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        """Return 0: Omega is 0 at structures."""
        return 0.0

    def best_of(self, *scores: Tensor) -> Tensor:
        """The score of the best structure that the scores allow."""
        return self.structure.best_score(*scores)

    def distribution(self, *scores: Tensor) -> Finite:
        """The k best structures and their weights."""
        y, values, undefined = self._best(scores)
        return Finite(self.structure, y, Gini().argmax(values), scores[0].dtype, undefined=undefined)

    def _best(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:
        """The k best structures, by first tensors (*batch, k, ...), and their scores over gamma (*batch, k).

        If there are fewer than k, zeros of score -inf follow. The third result marks the parts of instances with NaN
        among their scores, whose structures are zeros and whose scores are NaN.
        """
        cold = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        with torch.no_grad():
            y, known = self._k_best(cold)
            undefined = undefined_parts(self.structure, cold)
        values = torch.where(known, self.structure.rescore(y, *(x.double() for x in cold)), -torch.inf)
        if undefined is not None:
            bad = instances(self.structure, undefined).unsqueeze(-1)
            y = torch.where(bad.reshape(*bad.shape, *[1] * (y.dim() - bad.dim())), 0, y)
            values = torch.where(bad, nan_of(self.structure, cold, undefined).unsqueeze(-1), values)
        return y, values, undefined

    def _k_best(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        y, values = self.structure.kbest(scores, self.k)
        return tensors(y)[0].double(), values > -torch.inf
