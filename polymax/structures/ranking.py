"""Rankings: permutations of 1, ..., n, and their relaxations by projection onto the permutahedron."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax._function import applied
from polymax.kernels.isotonic import isotonic
from polymax.kernels.widen import wide
from polymax.regularizers.fused import SegmentMean
from polymax.structures import faults
from polymax.structures.base import Structure


@dataclass(frozen=True, eq=False)
class Ranking(Structure):
    """Permutations of (1, ..., n): a higher score, a higher rank. Ties rank the later entry higher.

    Shapes: scores (*batch, n)

    Example:
        >>> Ranking().map(torch.tensor([0.3, 2.0, -1.0]))
        tensor([2., 3., 1.])
    """

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

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def projection(self, *scores: Tensor) -> Tensor:
        x = _row(scores)
        ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        return permutahedron(x, ranks.expand(x.shape))

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Ranks as integers to ranks as floats."""
        return index.float()

    def decode(self, y: Tensor) -> Tensor:
        """Ranks as integers."""
        return y.round().long()

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        return index * _row(scores)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        x = _row(scores)
        faults.shaped(index, x.shape, "ranks (*batch, n)")
        if _check.readable(index):
            ordered = index.sort(-1).values
            n = x.shape[-1]

            def explain(instance: tuple[int, ...], place: int) -> str:
                return f"rank {place + 1}{faults.of(instance)} is not given once; ranks are 1 to {n}"

            faults.refuse("ranking", ordered != torch.arange(1, n + 1), explain)
        return index

    def whole(self, y: Any) -> bool:
        return bool((y == y.round()).all())

    def hamming(self, first: Tensor) -> Tensor:
        raise ValueError("cost must be given: ranks are no indicators, of which Hamming's cost counts the wrong ones")


def soft_rank(x: Tensor, gamma: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """Ranks 1, ..., n that move with the scores: their projection x / gamma onto the permutahedron.

    Small gamma gives the ranks, large gamma brings them together at (n + 1) / 2.

    Example:
        >>> soft_rank(torch.tensor([0.3, 2.0, -1.0]), gamma=0.1)
        tensor([2., 3., 1.])

    See: Blondel et al. 2020, Fast differentiable sorting and ranking, section 4.
    """
    _check.floating(x, "x")
    rows = wide(x).movedim(dim, -1) / gamma
    return Ranking().projection(rows).movedim(-1, dim).to(x.dtype)


def soft_sort(x: Tensor, gamma: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """The scores in rising order, close ones drawn together: the projection of (1, ..., n) / gamma onto their orders.

    Example:
        >>> soft_sort(torch.tensor([0.3, 2.0, -1.0]), gamma=0.1)
        tensor([-1.0000, 0.3000, 2.0000])

    See: Blondel et al. 2020, Fast differentiable sorting and ranking, section 4.
    """
    _check.floating(x, "x")
    rows = wide(x).movedim(dim, -1)
    places = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device) / gamma
    ordered = rows.sort(dim=-1, stable=True).values
    return permutahedron(places.expand(rows.shape), ordered).movedim(-1, dim).to(x.dtype)


def permutahedron(x: Tensor, w: Tensor) -> Tensor:
    """The projection of x onto the hull of the permutations of w, which rises.

        x - v, where v is the isotonic regression of sorted x - w, put back in the order of x

    Shapes: x, w (*batch, n)
    """
    # the isotonic kernel regresses to falling rows
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices
    v = applied(_Isotonic, x.gather(-1, order) - w.flip(-1))
    return x - torch.zeros_like(v).scatter(-1, order, v)


class _Isotonic(Function):
    """The nearest falling row; its Jacobian averages over the runs it pooled."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return isotonic(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return applied(SegmentMean, z, v, None)


def _row(scores: tuple[Tensor, ...]) -> Tensor:
    (x,) = scores
    _check.floating(x, "scores")
    if x.dim() < 1:
        raise ValueError(f"scores must be (*batch, n); got {tuple(x.shape)}")
    return x
