"""Attention whose sharpness grows with the number of keys, by learned parameters of each head."""

from typing import Any

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.mappings import entmax
from polymax.nn.attention_mapping import Mapping, apply_mapping, check_heads, checked_mapping


class LengthScaling(nn.Module):
    """A mapping whose scores are first multiplied by a learned function of the number of keys, for each head.

        weights = mapping(factor scores)        factor = delta_h + beta_h log(max(n, 2)) ^ gamma_h,  beta_h > 0

    n is the number of keys that the query sees. With entmax this is ASEntmax: rows stay sharp at lengths that training
    did not have. Pass it wherever a mapping is accepted: `MultiheadAttention(512, 8, mapping=LengthScaling(8))`.
    Attention multiplies queries by the factor, so that it keeps the paths of the inner mapping; masks that are added,
    softcap and sinks stay as they are. delta, beta and gamma are learned, and are in the state_dict.

    Arguments:
        num_heads: the number of heads, each with parameters of its own
        mapping: takes the scaled scores; entmax with alpha 1.5 by default
        delta, beta, gamma: the initial parameters of all heads; beta is positive

    Shapes: scores (*batch, num_heads, L, S), and weights of the same shape

    Example:
        >>> mapping = LengthScaling(2, pm.sparsemax, beta=0.5)
        >>> mapping.factors(torch.tensor([8, 1024])).detach()
        tensor([[2.0397, 4.4657],
                [2.0397, 4.4657]])
        >>> mapping(torch.tensor([0.0, 0.2, 0.5]).expand(2, 1, 3))[0].detach()
        tensor([[0.0000, 0.2676, 0.7324]])

    See: Vasylenko, Pitorro, Martins and Treviso 2025, Long-context generalization with sparse attention,
    https://arxiv.org/abs/2506.16640.
    """

    def __init__(
        self,
        num_heads: int,
        mapping: Mapping = entmax,
        *,
        delta: float = 1.0,
        beta: float = 0.1,
        gamma: float = 1.0,
    ) -> None:
        _check.whole(num_heads, "num_heads")
        super().__init__()
        self.mapping: Any = checked_mapping(mapping)
        if isinstance(self.mapping, LengthScaling):
            raise TypeError("mapping must not be a LengthScaling itself: factors do not nest")
        check_heads(self.mapping, num_heads, "LengthScaling")
        _check.number(delta, "delta", "finite", lambda v: abs(v) < torch.inf)
        _check.number(beta, "beta", "positive and finite", lambda v: (v > 0) & (v < torch.inf))
        _check.number(gamma, "gamma", "finite", lambda v: abs(v) < torch.inf)
        self.delta = nn.Parameter(torch.full((num_heads,), float(delta)))
        # beta = softplus(raw_beta)
        self.raw_beta = nn.Parameter(torch.full((num_heads,), float(beta), dtype=torch.float64).expm1().log().float())
        self.gamma = nn.Parameter(torch.full((num_heads,), float(gamma)))

    @property
    def num_heads(self) -> int:
        """The number of heads that have parameters."""
        return len(self.delta)

    @property
    def beta(self) -> Tensor:
        """The beta of each head, (num_heads,), above 0."""
        return nn.functional.softplus(self.raw_beta)

    def factors(self, counts: Tensor) -> Tensor:
        """Return the factors of the scores of queries, given the number of keys that they see.

        Shapes: counts (queries,), or (*batch, num_heads or 1, queries); factors (num_heads, queries), or
        (*batch, num_heads, queries)
        """
        # a row of one key has weight 1 for any factor
        logs = counts.clamp(min=2).to(torch.promote_types(self.delta.dtype, torch.float32)).log()
        delta, beta, gamma = (p[:, None] for p in (self.delta, self.beta, self.gamma))
        return delta + beta * logs**gamma

    def scaled(self, query: Tensor, counts: Tensor) -> Tensor:
        """Return queries (*batch, heads, L, E) times the factors of the numbers of keys that they see."""
        factors = self.factors(counts)[..., None]
        return query * (factors if query.dim() > 2 else factors[0]).to(query.dtype)

    def forward(self, x: Tensor, dim: int = -1) -> Tensor:
        if x.dim() > 2 and self.num_heads not in (1, x.shape[-3]):
            check_heads(self, x.shape[-3], f"scores {tuple(x.shape)}")
        if dim not in (-1, x.dim() - 1):
            raise ValueError(f"dim must be the last one, -1; got {dim}")
        hidden = x == -torch.inf
        factors = self.factors((~hidden).sum(-1))[..., None].to(x.dtype)
        # 0 times -inf would be NaN
        return apply_mapping(self.mapping, (factors * x.masked_fill(hidden, 0)).masked_fill(hidden, -torch.inf))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"
