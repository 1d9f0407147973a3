"""Scores of pairs of arcs: each of a word, its head, and its sibling or its head's head."""

import torch
from torch import Tensor, nn


class PairScorer(nn.Module):
    """A trilinear form of low rank.

        scores[a, b, c] = sum_r tanh(A x_a)_r tanh(B x_b)_r (C x_c)_r        x_0 the root

    Its scores are 0 before training, so that a parser begins with scores of arcs alone.

    Shapes: nodes (b, n + 1, dim); scores (b, n + 1, n + 1, n + 1)

    Example:
        >>> PairScorer(4, 8)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 3, 3])

    See: Wang, Huang and Tu 2019, Second-order semantic dependency parsing with end-to-end neural networks.
    """

    def __init__(self, dim: int, rank: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(dim, rank) for _ in range(3))
        nn.init.zeros_(self.third.weight)
        nn.init.zeros_(self.third.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        a, b = (self.dropout(torch.tanh(part(nodes))) for part in (self.first, self.second))
        return torch.einsum("bir,bjr,bkr->bijk", a, b, self.third(nodes))
