"""Attention whose weights are expectations of structures: segments, trees, subsets, alignments."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymax import _check
from polymax.smoothing import Smoothing
from polymax.structures import Alignment, Assignment, Chain, ProjectiveTree, SpanningTree
from polymax.structures.base import Parts


class StructuredAttention(nn.Module):
    """Attention by an expected structure: values are summed with the weights mu = smooth(scores).

        chain      context = sum_i mu(state of i is not 0) value_i        not normalised: several are attended to
        trees      context_m = sum_h mu(h is the head of m) value_h
        items      context = sum_i mu_i value_i        for Simplex, Subset and others with scores (*batch, n)

    Scores come from a scorer, such as `SegmentScorer` or `ArcScorer`. A mask is True for tokens, then padding follows;
    its batch dims, and those of the values, broadcast. The root symbol of a tree adds its value if that is given.

    Shapes:
        chain   unary (*batch, n, s), transition (s, s); values (*batch, n, d); context (*batch, d)
        trees   scores (*batch, n + 1, n + 1); values (*batch, n, d) or (*batch, n + 1, d); context (*batch, n, d)
        items   scores (*batch, n); values (*batch, n, d); context (*batch, d); mask (*batch, n) in all cases

    Example:
        >>> context, mu = StructuredAttention(pm.Marginals(pm.SpanningTree()))(torch.zeros(3, 3), torch.eye(2))
        >>> context
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]])

    See: Kim, Denton, Hoang and Rush 2017, Structured attention networks; Liu and Lapata 2018; Niculae et al. 2018.
    """

    def __init__(self, smooth: Smoothing) -> None:
        super().__init__()
        self.smooth = _checked(smooth)

    def forward(
        self, scores: Tensor | tuple[Tensor, ...], values: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Parts]:
        """The context, and mu in the form of the structure."""
        parts = (scores,) if isinstance(scores, Tensor) else tuple(scores)
        structure = self.smooth.structure
        if isinstance(structure, Chain):
            mu = self._smooth_for_mask(mask, parts[0].shape[:-1])(*parts)
            return _weighted_sum(mu.unary[..., 1:].sum(-1), values), mu
        if isinstance(structure, ProjectiveTree | SpanningTree):
            *batch, _, nodes = parts[0].shape
            mu = self._smooth_for_mask(mask, (*batch, nodes - 1))(*parts)
            heads = mu[..., 1:].transpose(-2, -1)
            return _product(heads if values.shape[-2] == nodes else heads[..., 1:], values), mu
        if structure.event_dims(*parts) != (1,):
            name = type(structure).__name__
            raise TypeError(f"smooth must range over a chain, dependency trees or items; got {name}")
        mu = self.smooth(_check.masked(parts[0], mask))
        return _weighted_sum(mu, values), mu

    def extra_repr(self) -> str:
        return _name_of(self.smooth)

    def _smooth_for_mask(self, mask: Tensor | None, shape: tuple[int, ...]) -> Smoothing:
        return self.smooth if mask is None else self.smooth.with_lengths(_lengths(mask, shape, "mask"))


class Aligned(NamedTuple):
    """The contexts of the first sequence (*batch, n, e) and the second (*batch, m, d), and mu (*batch, n, m)."""

    first: Tensor
    second: Tensor
    mu: Tensor


class AlignmentAttention(nn.Module):
    """Two sequences that attend to each other by one expected alignment, or matching.

        first_i = sum_j mu_ij y_j / max(1, sum_j mu_ij)        second_j = sum_i mu_ij x_i / max(1, sum_i mu_ij)

    A path visits every row and every column, so that contexts are means. Rows and columns that a matching leaves out
    get 0.

    Shapes:
        scores (*batch, n, m); x (*batch, n, d); y (*batch, m, e); masks (*batch, n) and (*batch, m), True for tokens,
        which come before padding

    Example:
        >>> attention = AlignmentAttention(pm.SparseMap(pm.Assignment()))
        >>> attention(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.eye(2), 2 * torch.eye(2)).first
        tensor([[2., 0.],
                [0., 2.]])

    See: Niculae, Martins, Blondel and Cardie 2018, SparseMAP; Chen et al. 2017, Enhanced LSTM.
    """

    def __init__(self, smooth: Smoothing) -> None:
        super().__init__()
        self.smooth = _checked(smooth)
        if not isinstance(smooth.structure, Alignment | Assignment):
            name = type(smooth.structure).__name__
            raise TypeError(f"smooth must range over Alignment or Assignment; got {name}")

    def forward(
        self, scores: Tensor, x: Tensor, y: Tensor, x_mask: Tensor | None = None, y_mask: Tensor | None = None
    ) -> Aligned:
        """Both contexts, and mu."""
        smooth = self.smooth
        if x_mask is not None or y_mask is not None:
            *batch, n, m = scores.shape
            masks = (t if t is not None else scores.new_ones(1, dtype=torch.bool) for t in (x_mask, y_mask))
            sizes, names = ((*batch, n), (*batch, m)), ("x_mask", "y_mask")
            smooth = smooth.with_lengths(tuple(map(_lengths, masks, sizes, names)))
        mu = smooth(scores)
        first, second = (mu / mu.sum(dim, keepdim=True).clamp(min=1) for dim in (-1, -2))
        return Aligned(first @ y, second.transpose(-2, -1) @ x, mu)

    def extra_repr(self) -> str:
        return _name_of(self.smooth)


def _checked(smooth: Smoothing) -> Smoothing:
    if not isinstance(smooth, Smoothing):
        raise TypeError(f"smooth must be a Smoothing, such as Marginals(Chain()); got {type(smooth).__name__}")
    return smooth


def _name_of(smooth: Smoothing) -> str:
    return f"{type(smooth).__name__}({type(smooth.structure).__name__})"


def _lengths(mask: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """The number of tokens, (*batch,), of a mask that broadcasts to (*batch, n)."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor (True = token); got {_check.kind(mask)}")
    if mask.dim() > len(shape) or any(have not in (1, want) for have, want in zip(mask.shape[::-1], shape[::-1])):
        raise ValueError(f"{name} must broadcast to {tuple(shape)}; got {tuple(mask.shape)}")
    if _check.readable(mask) and bool((mask[..., 1:] & ~mask[..., :-1]).any()):
        raise ValueError(f"{name} must be True from the left: tokens first, then padding")
    return mask.expand(shape).sum(-1)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    return _product(weights.unsqueeze(-2), values).squeeze(-2)


def _product(weights: Tensor, values: Tensor) -> Tensor:
    if values.dim() < 2 or values.shape[-2] != weights.shape[-1]:
        raise ValueError(f"values must be (*batch, {weights.shape[-1]}, d); got {tuple(values.shape)}")
    return weights @ values
