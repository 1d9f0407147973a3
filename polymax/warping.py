"""Dynamic time warping, hard and smoothed, of costs and of series.

    dtw(cost) = min over alignments A of <cost, A>
    soft_dtw(cost) = - gamma log sum over alignments A of exp(-<cost, A> / gamma)

A `band` leaves some cells out: a bool tensor (True = allowed) that broadcasts to the cost, such as `itakura` gives, or
the radius of a Sakoe-Chiba band. The cost is infinite where no alignment is left, and its gradient 0.

With `subsequence`, alignments are those of all rows with a stretch of columns: a query is found in a longer series. A
list of costs (n_k, m_k) is a batch of problems of these lengths; so are lists of series, and packed sequences.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check, _ragged
from polymax._ragged import Ragged
from polymax.backend.widen import wide
from polymax.bands import sakoe_chiba
from polymax.regularizers import Regularizer
from polymax.smoothing import HardMax, LocalMax, Marginals, Smoothing
from polymax.structures import Alignment, Subsequence
from polymax.structures.base import checked_lengths

Pair = tuple[Tensor, Tensor]
Costs = Tensor | Sequence[Tensor]


def dtw(
    cost: Costs, lengths: Pair | None = None, band: Tensor | int | None = None, *, subsequence: bool = False
) -> Tensor:
    """The least total cost of an alignment; its gradient is the best path.

    Shapes: cost (*batch, n, m) or a list of (n_k, m_k); lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> dtw(torch.tensor([[0.0, 1.0, 4.0], [4.0, 1.0, 0.0]]))
        tensor(1.)
        >>> query, series = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0], [1.0], [2.0], [7.0]])
        >>> dtw(squared_euclidean(query, series), subsequence=True)
        tensor(0.)
    """
    return _warped(HardMax, cost, lengths, band, subsequence)


def soft_dtw(
    cost: Costs,
    gamma: float | Tensor = 1.0,
    lengths: Pair | None = None,
    band: Tensor | int | None = None,
    *,
    subsequence: bool = False,
) -> Tensor:
    """Dynamic time warping smoothed by the entropy over alignments; its gradient is the expected alignment.

        - gamma log sum over A of exp(-<cost, A> / gamma)

    Shapes: cost (*batch, n, m) or a list of (n_k, m_k); lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> soft_dtw(torch.zeros(2, 2))
        tensor(-1.0986)

    See: Cuturi and Blondel 2017, Soft-DTW: a differentiable loss function for time-series.
    """
    return _warped(lambda alignments: Marginals(alignments, gamma), cost, lengths, band, subsequence)


def smoothed_dtw(
    cost: Costs,
    regularizer: Regularizer,
    lengths: Pair | None = None,
    band: Tensor | int | None = None,
    *,
    subsequence: bool = False,
) -> Tensor:
    """Dynamic time warping with every minimum smoothed by a regularizer: Gini() is sparse, Shannon() is soft_dtw.

    Shapes: cost (*batch, n, m) or a list of (n_k, m_k); lengths a pair of (*batch,), rows and columns; result (*batch,)

    Example:
        >>> smoothed_dtw(torch.tensor([[0.0, 1.0, 4.0], [4.0, 1.0, 0.0]]), pm.Gini())
        tensor(0.7500)

    See: Mensch and Blondel 2018, Differentiable dynamic programming, section 4.2.
    """
    return _warped(lambda alignments: LocalMax(alignments, regularizer), cost, lengths, band, subsequence)


def soft_dtw_divergence(
    x: Tensor | Ragged,
    y: Tensor | Ragged,
    gamma: float | Tensor = 1.0,
    lengths: Pair | None = None,
    band: int | None = None,
) -> Tensor:
    """Soft-DTW of squared distances without its bias: 0 for equal series, where soft_dtw is negative.

        soft_dtw(x, y) - soft_dtw(x, x) / 2 - soft_dtw(y, y) / 2

    Batches broadcast: (a, 1, n, d) with (b, m, d) gives all pairs. `band` is the radius of a Sakoe-Chiba band.

    Shapes:
        x (*batch, n, d), y (*batch, m, d); lengths a pair of (*batch,), of x and of y; result (*batch,). A list of
        series (n_k, d), or a PackedSequence of them, has lengths of its own

    Example:
        >>> soft_dtw_divergence(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0], [1.0]]))
        tensor(0.3831)

    See: Blondel, Mensch and Vert 2021, Differentiable divergences between time series.
    """
    if isinstance(band, Tensor):
        raise TypeError("band must be a radius: the divergence compares x with y, and each with itself")
    x, of_x = padded_series(x, None if lengths is None else lengths[0], "x")
    y, of_y = padded_series(y, None if lengths is None else lengths[1], "y")
    dtype = torch.promote_types(x.dtype, y.dtype)
    (x, n), (y, m) = clean_series(x, of_x, "x"), clean_series(y, of_y, "y")
    batch = torch.broadcast_shapes(n.shape, m.shape)

    def compared(a: Tensor, b: Tensor, lengths: Pair) -> Tensor:
        return soft_dtw(squared_euclidean(a, b), gamma, lengths, band)

    value = compared(x, y, (n.expand(batch), m.expand(batch)))
    return (value - compared(x, x, (n, n)) / 2 - compared(y, y, (m, m)) / 2).to(dtype)


def soft_dtw_barycenter(
    series: Tensor | Ragged,
    weights: Tensor | None = None,
    gamma: float = 1.0,
    init: Tensor | None = None,
    size: int | None = None,
    lengths: Tensor | None = None,
    *,
    debiased: bool = False,
    max_iter: int = 500,
    tol: float = 1e-4,
) -> Tensor:
    """The barycenter of series under soft_dtw, by L-BFGS from `init`; if `debiased`, under soft_dtw_divergence.

        minimize over x  sum_k w_k soft_dtw(squared_euclidean(x, series_k))

    It starts at the mean of the series, each resampled to `size` points (the longest length), and stops where no
    entry of the gradient exceeds tol. The problem is not convex: another start may lead elsewhere.

    Shapes:
        series K tensors (n_k, d), or a PackedSequence of them, or (K, n, d) with lengths (K,); weights (K,); init and
        result (size, d)

    Example:
        >>> soft_dtw_barycenter([torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])], gamma=0.01)
        tensor([[0.5000],
                [2.5000]])

    See: Cuturi and Blondel 2017, section 4.2.
    """
    series, lengths = padded_series(series, lengths, "series")
    dtype = series.dtype
    y, lengths = clean_series(series.detach(), lengths, "series")
    if y.dim() != 3 or not y.shape[0] or not bool((lengths > 0).all()):
        raise ValueError(f"series must be (K, n, d), none of them empty; got {tuple(y.shape)}")
    # near the minimum, the differences of gradients that L-BFGS takes are lost in float32
    y = y.double()
    w = y.new_ones(len(y)) if weights is None else weights.detach().to(y)
    if w.shape != y.shape[:1] or not bool((w >= 0).all()) or not bool(w.sum() > 0):
        raise ValueError(f"weights must be ({len(y)},), not negative, not all 0; got {weights}")
    w = w / w.sum()
    x = _resampled_mean(y, lengths, w, size) if init is None else init.detach().to(y, copy=True)
    if x.dim() != 2 or x.shape[-1] != y.shape[-1] or (size is not None and len(x) != size):
        raise ValueError(f"init must be ({size or 'size'}, {y.shape[-1]}); got {tuple(x.shape)}")
    rows = torch.full_like(lengths, len(x))
    optimizer = torch.optim.LBFGS(
        [x.requires_grad_()],
        max_iter=max_iter,
        max_eval=4 * max_iter,
        tolerance_grad=tol,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def loss_and_gradient() -> Tensor:
        loss = w @ soft_dtw(squared_euclidean(x, y), gamma, (rows, lengths))
        if debiased:
            loss = loss - soft_dtw(squared_euclidean(x, x), gamma) / 2
        (x.grad,) = torch.autograd.grad(loss, x)
        return loss

    optimizer.step(loss_and_gradient)
    with torch.enable_grad():
        loss_and_gradient()
    steepest = x.grad.abs().max() if x.grad is not None and x.numel() else 0.0
    if steepest > tol:
        warnings.warn(f"the barycenter did not converge: a gradient of {steepest:.1e} is left", stacklevel=2)
    return x.detach().to(dtype)


def squared_euclidean(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 for all pairs, from the differences: equal points are at distance 0 exactly.

    Shapes: x (*batch, n, d), y (*batch, m, d), batches broadcast; result (*batch, n, m)

    Example:
        >>> squared_euclidean(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([[25.,  1.]])
    """
    for t, name in ((x, "x"), (y, "y")):
        _check.floating(t, name)
        if t.dim() < 2:
            raise ValueError(f"{name} must be (*batch, n, d); got {tuple(t.shape)}")
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"x and y must have points of one size; got {tuple(x.shape)} and {tuple(y.shape)}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    a, b = (wide(t.to(dtype)).expand(*batch, *t.shape[-2:]) for t in (x, y))
    return _SquaredEuclidean.apply(a, b).to(dtype)


def resample(series: Tensor, size: int) -> Tensor:
    """A series at `size` points, by lines between its own.

    Shapes: series (n, d); result (size, d)

    Example:
        >>> resample(torch.tensor([[0.0], [2.0]]), 3).T
        tensor([[0., 1., 2.]])
    """
    columns = series.T.unsqueeze(0)
    return torch.nn.functional.interpolate(columns, size, mode="linear", align_corners=True)[0].T


def _warped(
    smooth: Callable[[Any], Smoothing],
    cost: Costs,
    lengths: Pair | None,
    band: Tensor | int | None,
    subsequence: bool,
) -> Tensor:
    if not isinstance(cost, Tensor) and isinstance(cost, Sequence):
        if lengths is not None:
            raise ValueError("lengths must be None if cost is a list: its matrices have lengths of their own")
        cost, lengths = _ragged.padded_matrices(cost, "cost")
    _check.floating(cost, "cost")
    if cost.dim() < 2:
        raise ValueError(f"cost must be (*batch, n, m); got {tuple(cost.shape)}")
    if isinstance(band, Tensor):
        if band.dtype != torch.bool:
            raise TypeError(f"band must be a bool tensor (True = allowed) or a radius; got {band.dtype}")
        _check.broadcasts(band, cost, "band")
    elif band is not None and subsequence:
        raise TypeError("band must be a bool tensor if subsequence is True: a radius needs a known stretch of columns")
    elif band is not None:
        band = sakoe_chiba(cost.shape[-2], cost.shape[-1], band, lengths, cost.device)
    scores = -cost if band is None else -cost.masked_fill(~band, torch.inf)
    # 0 - value instead of -value, so that a cost of 0 is not -0
    return 0 - smooth(Subsequence(lengths) if subsequence else Alignment(lengths)).max(scores)


def padded_series(series: Tensor | Ragged, lengths: Tensor | None, name: str) -> tuple[Tensor, Tensor | None]:
    """Padded series and their lengths, from series of any kind."""
    if not _ragged.is_ragged(series):
        return cast(Tensor, series), lengths
    if lengths is not None:
        raise ValueError(f"lengths of {name} must be None: a list or a PackedSequence has lengths of its own")
    return _ragged.padded(series, name, 2)


def clean_series(series: Tensor, lengths: Tensor | None, name: str) -> Pair:
    """Series with zeros for padding, whatever it held, and their lengths."""
    _check.floating(series, name)
    if series.dim() < 2:
        raise ValueError(f"{name} must be (*batch, n, d); got {tuple(series.shape)}")
    *batch, n, _ = series.shape
    lengths = checked_lengths(lengths, torch.Size(batch), n, series.device, f"lengths of {name}").reshape(batch)
    kept = torch.arange(n, device=series.device) < lengths[..., None]
    return torch.where(kept[..., None], wide(series), 0), lengths


def _resampled_mean(y: Tensor, lengths: Tensor, weights: Tensor, size: int | None) -> Tensor:
    """The mean of the series after each is stretched to `size` points."""
    size = int(lengths.max()) if size is None else _check.whole(size, "size")
    points = torch.stack([resample(t[:n], size) for t, n in zip(y, lengths.tolist())])
    return torch.einsum("k,knd->nd", weights, points)


class _SquaredEuclidean(Function):
    """|x_i|^2 + |y_j|^2 - 2 <x_i, y_j> has the same derivatives, but cancels; so it is used in the backward alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        if x.shape[-1] == 1:
            # several times faster than cdist, which computes pair by pair
            return (x - y.transpose(-2, -1)).square()
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        for_x, for_y = ctx.needs_input_grad
        if x.shape[-1] == 1:
            # elementwise: a matrix product with one column takes several times as long
            slope = g * (x - y.transpose(-2, -1))
            return (
                2 * slope.sum(-1, keepdim=True) if for_x else None,
                -2 * slope.sum(-2).unsqueeze(-1) if for_y else None,
            )
        # shifting all points by one vector changes only the rounding
        centre = y.detach().mean(-2, keepdim=True) if y.shape[-2] else 0
        x, y = x - centre, y - centre
        return (
            2 * (g.sum(-1).unsqueeze(-1) * x - g @ y) if for_x else None,
            2 * (g.sum(-2).unsqueeze(-1) * y - g.transpose(-2, -1) @ x) if for_y else None,
        )
