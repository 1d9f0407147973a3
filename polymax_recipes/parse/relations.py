"""Scores of the relations of words to given heads."""

import torch
from torch import Tensor, nn


class RelationScorer(nn.Module):
    """A bilinear form for each relation, of the vectors of a word and of its head.

        scores[m, r] = <[tanh(H x_h), 1], W_r [tanh(M x_m), 1]>        h the head of m, x_0 the root

    Shapes: nodes (b, n + 1, dim); heads (b, n), -1 at padding; scores (b, n, relations)

    Example:
        >>> RelationScorer(4, 8, 3)(torch.zeros(1, 3, 4), torch.tensor([[2, 0]])).shape
        torch.Size([1, 2, 3])

    See: Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing, Section 2.
    """

    def __init__(self, dim: int, hidden_dim: int, relations: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Linear(dim, hidden_dim)
        self.modifier = nn.Linear(dim, hidden_dim)
        self.forms = nn.Parameter(torch.empty(relations, hidden_dim + 1, hidden_dim + 1))
        nn.init.uniform_(self.forms, -1 / hidden_dim, 1 / hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor, heads: Tensor) -> Tensor:
        above = self.head(nodes)
        above = above.gather(1, heads.clamp(min=0).unsqueeze(-1).expand(-1, -1, above.shape[-1]))
        first, second = (self.dropout(torch.tanh(part)) for part in (above, self.modifier(nodes[:, 1:])))
        first, second = (nn.functional.pad(part, (0, 1), value=1.0) for part in (first, second))
        return torch.einsum("bnlh,bnh->bnl", torch.einsum("bnm,lhm->bnlh", second, self.forms), first)
