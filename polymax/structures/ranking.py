"""Rankings: permutations of 1, ..., n, and their relaxations by projection onto the permutahedron."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import Stepwise, apply_function
from polymax.backend.widen import wide
from polymax.kernels.isotonic import isotonic
from polymax.kernels.isotonic_kl import isotonic_kl
from polymax.kernels.segment_mean import segment_mean
from polymax.regularizers.entropies import positive
from polymax.structures.base import Structure
from polymax.structures.compact.choices import Ranks


@dataclass(frozen=True, eq=False)
class Ranking(Structure):
    """Permutations of (1, ..., n): the higher the score, the higher the rank; later entries win ties.

    Shapes: scores (*batch, n)

    Example:
        >>> Ranking().map(torch.tensor([0.3, 2.0, -1.0]))
        tensor([2., 3., 1.])
    """

    may_be_empty = False
    form = Ranks

    def map(self, *scores: Tensor) -> Tensor:
        x = _row(scores)
        order = torch.sort(x, dim=-1, stable=True).indices
        ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device).expand(x.shape)
        y = torch.zeros_like(x).scatter(-1, order, ranks)
        return torch.where(torch.isnan(x).any(-1, keepdim=True), torch.nan, y)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        (n,) = event_shape
        listed = list(itertools.permutations(range(1, n + 1)))
        return torch.tensor(listed, dtype=torch.float32).reshape(len(listed), n)

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        (n,) = event_shape
        return torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def projection(self, *scores: Tensor) -> Tensor:
        x = _row(scores)
        ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        # ranks do not change by a shift, and small scores keep their digits
        return permutahedron(x - _top(x), ranks.expand(x.shape))


@_check.no_integer_second
def soft_rank(x: Tensor, gamma: float | Tensor = 1.0, dim: int = -1, *, regularization: str = "quadratic") -> Tensor:
    """Ranks 1, ..., n that move with the scores: x / gamma, projected onto the permutahedron.

    gamma is the temperature, in the unit of the scores. Scores that are at least gamma apart have their exact ranks.
    Closer scores share ranks: the closer, the more. For large gamma all ranks approach (n + 1) / 2.
    `regularization` is the distance of the projection: "quadratic", the Euclidean one, which is piecewise linear in
    x, or "kl", the Kullback-Leibler divergence from exp(x / gamma), which is smooth where ranks are shared.

    Example:
        >>> soft_rank(torch.tensor([0.3, 2.0, -1.0]), gamma=0.1)
        tensor([2., 3., 1.])

    See: Blondel et al. 2020, Fast differentiable sorting and ranking, section 4.
    """
    rows, temperature = _rows_and_gamma(x, gamma, dim, regularization)
    ranks = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device).expand(rows.shape)
    scores = (rows - _top(rows)) / temperature
    project = permutahedron if regularization == "quadratic" else _kl_ranks
    return _back(project(scores, ranks), x, dim)


@_check.no_integer_second
def soft_sort(x: Tensor, gamma: float | Tensor = 1.0, dim: int = -1, *, regularization: str = "quadratic") -> Tensor:
    """The scores in rising order, distant scores drawn together: (1, ..., n) / gamma, projected onto their orders.

    gamma is the inverse of a distance of scores. Neighbours in the order that are at most 1 / gamma apart do not move;
    neighbours further apart are drawn together. For large gamma all approach their mean. `regularization` is the
    distance of the projection: "quadratic", the Euclidean one, or "kl", the Kullback-Leibler divergence of exponentials
    of the negated scores, as in fast-soft-sort: large gamma then brings all to -log of the mean of exp(-x).

    Example:
        >>> soft_sort(torch.tensor([0.3, 2.0, -1.0]), gamma=0.1)
        tensor([-1.0000, 0.3000, 2.0000])

    See: Blondel et al. 2020, Fast differentiable sorting and ranking, section 4.
    """
    rows, temperature = _rows_and_gamma(x, gamma, dim, regularization)
    places = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device).expand(rows.shape) / temperature
    if regularization == "quadratic":
        return _back(permutahedron(places, rows.sort(dim=-1, stable=True).values), x, dim)
    # the divergence is not symmetric: negated scores are sorted, and the result flipped
    return _back(-_log_kl_projection(places, (-rows).sort(dim=-1, stable=True).values).flip(-1), x, dim)


def permutahedron(x: Tensor, w: Tensor) -> Tensor:
    """The projection of x onto the hull of the permutations of w, whose entries must rise.

        x - v, where v is the isotonic regression of sorted x - w, put back in the order of x

    Shapes: x, w (*batch, n)
    """
    # the isotonic kernel regresses to falling rows
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices
    scores, falling = x.gather(-1, order), w.flip(-1)
    difference = scores - falling
    v = isotonic(difference.detach())
    # on a run, v is the mean of the difference: with two separate means, w keeps its digits beside large scores
    means = (apply_function(SegmentMean, v, t, difference) for t in (scores, falling))
    mu = (scores - next(means)) + next(means)
    return torch.zeros_like(mu).scatter(-1, order, mu)


class SegmentMean(Function):
    """v averaged over runs of equal z: a symmetric projection, and constant almost everywhere in the scores of z."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, v: Tensor, scores: Tensor) -> Tensor:
        return segment_mean(z, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        z, _, scores = inputs
        ctx.save_for_backward(z, scores)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        z, scores = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, segment_mean(z, u), None
        (mean,) = apply_function(Stepwise, 1, scores, apply_function(SegmentMean, z, u, scores))
        return None, mean, None


def _kl_ranks(x: Tensor, ranks: Tensor) -> Tensor:
    return torch.exp(_log_kl_projection(x, ranks.log()))


def _log_kl_projection(x: Tensor, w: Tensor) -> Tensor:
    """The logarithm of the KL projection of exp(x) onto the hull of the permutations of exp(w); w rises.

        x - v, where v is the entropic isotonic regression of sorted x and w, put back in the order of x

    Shapes: x, w (*batch, n)
    """
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices
    scores, falling = x.gather(-1, order), w.flip(-1)
    run = isotonic_kl(scores.detach(), falling.detach())
    # a run shares the sum of its exp(w) like a softmax; the ends of runs are constant almost everywhere
    log_mu = (scores - _run_logsumexp(scores, run)) + _run_logsumexp(falling, run)
    return torch.zeros_like(log_mu).scatter(-1, order, log_mu)


def _run_logsumexp(x: Tensor, run: Tensor) -> Tensor:
    """The logarithm of the sum of exp(x) over each run, at every entry of the run."""
    top = torch.full_like(x, -torch.inf).scatter_reduce(-1, run, x.detach(), "amax").gather(-1, run)
    total = torch.zeros_like(x).scatter_add(-1, run, torch.exp(x - top)).gather(-1, run)
    return torch.log(total) + top


def _rows_and_gamma(x: Tensor, gamma: float | Tensor, dim: int, regularization: str) -> tuple[Tensor, float | Tensor]:
    """x as rows, at least in float32, and the gamma of each row."""
    _check.floating(x, "x")
    positive(gamma, "gamma")
    if regularization not in ("quadratic", "kl"):
        raise ValueError(f'regularization must be "quadratic" or "kl"; got {regularization!r}')
    if x.dim() == 0:
        return wide(x).movedim(dim, -1).reshape(1), gamma
    rows = wide(x).movedim(dim, -1)
    if isinstance(gamma, Tensor):
        _check.parameter(gamma, x, dim, "gamma")
        gamma = gamma.reshape((1,) * (x.dim() - gamma.dim()) + gamma.shape).movedim(dim, -1) if gamma.dim() else gamma
    return rows, gamma


def _top(x: Tensor) -> Tensor | float:
    """The number to subtract from each row: ranks do not change by it, and large scores keep their digits."""
    return x.detach().amax(-1, keepdim=True) if x.shape[-1] else 0.0


def _back(rows: Tensor, x: Tensor, dim: int) -> Tensor:
    return (rows.reshape(()) if x.dim() == 0 else rows.movedim(-1, dim)).to(x.dtype)


def _row(scores: tuple[Tensor, ...]) -> Tensor:
    (x,) = scores
    _check.floating(x, "scores")
    if x.dim() < 1:
        raise ValueError(f"scores must be (*batch, n); got {tuple(x.shape)}")
    return x
