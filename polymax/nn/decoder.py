"""Attention of decoders: one query after the other, over the same keys."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.backend.widen import wide
from polymax.mappings import csparsemax, softmax
from polymax.nn.attention_mapping import Mapping, apply_mapping, checked_mapping
from polymax.nn.attention_values import weighted_sum
from polymax.nn.scorers import pairwise_scores


class Attention(nn.Module):
    """Attention for decoders, by a learned score (Bahdanau's, Luong's) and any mapping.

        context = sum_s weights_s value_s        weights = mapping(scorer(query, keys))

    A key that the mask leaves out has weight 0; if all keys are left out, the context is 0. Values default to the keys.

    Shapes:
        query (*batch, Q) or (*batch, T, Q); keys (*batch, S, K); values (*batch, S, V); mask (*batch, S), True = keep;
        context (*batch, V) or (*batch, T, V); weights (*batch, S) or (*batch, T, S)

    Example:
        >>> attention = Attention(pm.nn.AdditiveScorer(4, 6, hidden_dim=8), mapping=pm.entmax)
        >>> context, weights = attention(torch.randn(2, 4), torch.randn(2, 5, 6))
        >>> context.shape, weights.shape
        (torch.Size([2, 6]), torch.Size([2, 5]))

    See: Bahdanau, Cho and Bengio 2015; Luong, Pham and Manning 2015.
    """

    def __init__(self, scorer: nn.Module, mapping: Mapping = softmax) -> None:
        super().__init__()
        self.scorer = scorer
        self.mapping = checked_mapping(mapping)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The context and the weights."""
        scores = _masked(pairwise_scores(self.scorer, query, keys), keys, mask)
        weights = apply_mapping(self.mapping, scores)
        return _context(weights, keys if values is None else values), weights


class Attended(NamedTuple):
    """The context, the weights, and the remaining fertility (*batch, S)."""

    context: Tensor
    weights: Tensor
    left: Tensor


class FertilityAttention(nn.Module):
    """Attention that gives each word at most its fertility, summed over the steps of the decoder.

        weights_t = mapping(scores_t + exhaustion left_t, upper=left_t)        left_(t+1) = left_t - weights_t

    The mapping is csparsemax or csoftmax. Each step passes its remaining fertility to the next. If less than 1 remains
    over all words, the weights sum to the remainder; a sink, a word of infinite fertility, avoids this. A positive
    `exhaustion` prefers words with much fertility left; it does not change words of infinite fertility.

    Shapes: as Attention; fertility (*batch, S), at least 0

    Example:
        >>> attention = FertilityAttention(pm.nn.DotScorer())
        >>> keys = torch.tensor([[3.0], [1.0], [0.0]])
        >>> attention(torch.ones(2, 1), keys, torch.tensor([1.2, 0.4, 1.0])).weights
        tensor([[1.0000, 0.0000, 0.0000],
                [0.2000, 0.4000, 0.4000]])

    See: Martins and Kreutzer 2017; Malaviya, Ferreira and Martins 2018, Sparse and constrained attention.
    """

    def __init__(self, scorer: nn.Module, mapping: Callable[..., Tensor] = csparsemax, exhaustion: float = 0.0) -> None:
        super().__init__()
        self.scorer = scorer
        self.mapping = mapping
        self.exhaustion = exhaustion

    def forward(
        self,
        query: Tensor,
        keys: Tensor,
        fertility: Tensor,
        values: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Attended:
        """Attend once for a query (*batch, Q), or T times in turn for queries (*batch, T, Q)."""
        scores = _masked(pairwise_scores(self.scorer, query, keys), keys, mask)
        _check.floating(fertility, "fertility")
        if fertility.shape != keys.shape[:-1]:
            raise ValueError(f"fertility must be {tuple(keys.shape[:-1])}; got {tuple(fertility.shape)}")
        if _check.readable(fertility) and bool((fertility < 0).any()):
            raise ValueError(f"fertility must be at least 0; got {float(fertility.detach().min()):g}")
        left = wide(fertility)
        steps = []
        for row in scores.unbind(-2) if query.dim() == keys.dim() else (scores,):
            weights = self._step(wide(row), left)
            # rounding may make this slightly negative
            left = (left - weights).clamp(min=0)
            steps.append(weights.to(scores.dtype))
        weights = torch.stack(steps, -2) if query.dim() == keys.dim() else steps[0]
        return Attended(_context(weights, keys if values is None else values), weights, left)

    def _step(self, scores: Tensor, left: Tensor) -> Tensor:
        if self.exhaustion:
            scores = scores + self.exhaustion * torch.where(left < torch.inf, left, 0)
        # a weight is at most 1 in any case
        upper = torch.where(scores == -torch.inf, 0, left.clamp(max=1))
        # an extra place, which is dropped, takes the rest to a sum of 1
        missing = (1 - upper.sum(-1, keepdim=True, dtype=torch.float64)).clamp(min=0).to(upper.dtype)
        weights = self.mapping(
            torch.cat([scores, torch.zeros_like(missing)], -1),
            upper=torch.cat([upper, missing], -1),
            lower=torch.cat([torch.zeros_like(upper), missing], -1),
        )
        return weights[..., :-1]


def _masked(scores: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    if isinstance(mask, Tensor) and mask.shape != keys.shape[:-1]:
        raise ValueError(f"mask must be {tuple(keys.shape[:-1])}; got {tuple(mask.shape)}")
    return _check.masked(scores, mask if scores.dim() < keys.dim() else mask.unsqueeze(-2))


def _context(weights: Tensor, values: Tensor) -> Tensor:
    if weights.dim() == values.dim():
        return weighted_sum(weights, values).to(values.dtype)
    return weighted_sum(weights.unsqueeze(-2), values).squeeze(-2).to(values.dtype)
