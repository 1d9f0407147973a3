"""Calls of `map` for a whole batch, for loops on a GPU whose kind of search has no kernel."""

import torch
from torch import Tensor

from polymax.structures.base import Structure, tensors


class Questions:
    """The best structures of a batch of `count` instances by `map`, to be called at each iteration."""

    def __init__(self, structure: Structure, scores: tuple[Tensor, ...], count: int) -> None:
        self._structure = structure
        self._scores = scores
        self._none = torch.zeros_like(scores[0]) if len(scores) > 1 else scores[0]
        self._least = torch.where(structure.best_score(*scores).reshape(count) > -torch.inf, 0.0, -torch.inf).double()

    def __call__(self, around: Tensor) -> tuple[Tensor, Tensor]:
        """The first tensors of the best structures for scores less mu, `around` (B, d); the scores of other parts."""
        first, *rest = self._scores
        y = self._structure.map(around.reshape(first.shape), *rest)
        others = self._least
        if rest:
            others = torch.where(others < 0, others, self._structure.score(y, self._none, *rest).reshape(others.shape))
        return tensors(y)[0].contiguous(), others
