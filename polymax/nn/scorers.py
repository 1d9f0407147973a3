"""Scores of pairs of queries and keys: learned functions of their vectors."""

import torch
from torch import Tensor, nn


class DotScorer(nn.Module):
    """Scores that are inner products of queries and keys.

        scores[t, s] = scale <query_t, key_s>

    Shapes: queries (*batch, T, d); keys (*batch, S, d); scores (*batch, T, S)

    Example:
        >>> DotScorer()(torch.tensor([[1.0, 2.0]]), torch.eye(2))
        tensor([[1., 2.]])

    See: Luong, Pham and Manning 2015, Effective approaches to attention-based neural machine translation, "dot".
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (self.scale * queries) @ keys.transpose(-2, -1)

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class BilinearScorer(nn.Module):
    """Scores that are inner products in a learned geometry, also of vectors of different sizes.

        scores[t, s] = <query_t, W key_s>

    Shapes: queries (*batch, T, query_dim); keys (*batch, S, key_dim); scores (*batch, T, S)

    Example:
        >>> BilinearScorer(3, 2)(torch.zeros(4, 3), torch.zeros(5, 2)).shape
        torch.Size([4, 5])

    See: Luong, Pham and Manning 2015, "general".
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(key_dim, query_dim, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ self.key(keys).transpose(-2, -1)


class AdditiveScorer(nn.Module):
    """Scores that a network of one hidden layer computes.

        scores[t, s] = <v, tanh(W query_t + U key_s + b)>

    Shapes: queries (*batch, T, query_dim); keys (*batch, S, key_dim); scores (*batch, T, S)

    Example:
        >>> AdditiveScorer(3, 2, 8)(torch.zeros(4, 3), torch.zeros(5, 2)).shape
        torch.Size([4, 5])

    See: Bahdanau, Cho and Bengio 2015, Neural machine translation by jointly learning to align and translate.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden_dim)
        self.key = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        hidden = torch.tanh(self.query(queries).unsqueeze(-2) + self.key(keys).unsqueeze(-3))
        return self.energy(hidden).squeeze(-1)


class SegmentScorer(nn.Module):
    """Scores of a chain with two states, 0 outside and 1 attended to, so that attention forms segments.

        unary[s] = (0, scores[s])        transition: learned, [previous, next]

    Shapes:
        query (*batch, Q) or (*batch, T, Q); keys (*batch, S, K); unary (*batch, S, 2) or (*batch, T, S, 2);
        transition (2, 2)

    Example:
        >>> unary, transition = SegmentScorer(DotScorer())(torch.ones(2), torch.eye(2))
        >>> unary, transition.detach()
        (tensor([[0., 1.],
                 [0., 1.]]), tensor([[0., 0.],
                 [0., 0.]]))

    See: Kim, Denton, Hoang and Rush 2017, Structured attention networks.
    """

    def __init__(self, scorer: nn.Module) -> None:
        super().__init__()
        self.scorer = scorer
        self.transition = nn.Parameter(torch.zeros(2, 2))

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        scores = pairwise_scores(self.scorer, query, keys)
        # fully_shard frees the memory of the parameter itself after the forward pass
        return torch.stack([torch.zeros_like(scores), scores], -1), self.transition.clone()


class ArcScorer(nn.Module):
    """Scores of arcs between tokens, and from a root symbol whose vector is learned.

        scores[h, m] = <tanh(H x_h), W tanh(M x_m)> + <b, tanh(H x_h)>        x_0 the root

    In training, entries of the hidden vectors are dropped with probability `dropout`.

    Shapes: tokens (*batch, n, dim); scores (*batch, n + 1, n + 1), [head, modifier], 0 the root

    Example:
        >>> ArcScorer(4, 8)(torch.zeros(3, 4)).shape
        torch.Size([4, 4])

    See: Dozat and Manning 2017, Deep biaffine attention; Liu and Lapata 2018, Learning structured text representations.
    """

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(dim) / dim**0.5)
        self.head = nn.Linear(dim, hidden_dim)
        self.modifier = nn.Linear(dim, hidden_dim)
        self.pair = BilinearScorer(hidden_dim, hidden_dim)
        self.prior = nn.Linear(hidden_dim, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def with_root(self, tokens: Tensor) -> Tensor:
        """The vectors of the root and the tokens, (*batch, n + 1, dim)."""
        root = self.root.expand(*tokens.shape[:-2], 1, -1)
        return torch.cat([root.to(tokens.dtype), tokens], -2)

    def forward(self, tokens: Tensor) -> Tensor:
        nodes = self.with_root(tokens)
        heads, modifiers = (self.dropout(torch.tanh(layer(nodes))) for layer in (self.head, self.modifier))
        return self.pair(heads, modifiers) + self.prior(heads)


class RelationScorer(nn.Module):
    """Scores of the relations of words to given heads: a bilinear form for each relation.

        scores[m, r] = <[tanh(H x_h), 1], W_r [tanh(M x_m), 1]>        h the head of m, x_0 the root

    In training, entries of the hidden vectors are dropped with probability `dropout`.

    Shapes: nodes (b, n + 1, dim), as `ArcScorer.with_root` gives them; heads (b, n), -1 at padding; scores (b, n, r)

    Example:
        >>> RelationScorer(4, 8, 3)(torch.zeros(1, 3, 4), torch.tensor([[2, 0]])).shape
        torch.Size([1, 2, 3])

    See: Dozat and Manning 2017, Deep biaffine attention for neural dependency parsing, section 2.
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


def pairwise_scores(scorer: nn.Module, query: Tensor, keys: Tensor) -> Tensor:
    """Scores (*batch, S) of one query (*batch, Q), or (*batch, T, S) of several."""
    if query.dim() == keys.dim():
        return scorer(query, keys)
    if query.dim() != keys.dim() - 1:
        raise ValueError(
            f"query must be (*batch, Q) or (*batch, T, Q) for keys {tuple(keys.shape)}; got {tuple(query.shape)}"
        )
    return scorer(query.unsqueeze(-2), keys).squeeze(-2)
