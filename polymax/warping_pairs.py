"""Distances of all pairs of two collections of series."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._ragged import Ragged
from polymax.warping import Pair, clean_series, dtw, padded_series, squared_euclidean

# cells of costs at once, in all of a chunk's pairs: 8 MB in float64
_CELLS = 2**20


def pairwise(
    x: Tensor | Ragged,
    y: Tensor | Ragged,
    distance: Callable[..., Tensor] = dtw,
    *,
    lengths: tuple[Tensor | None, Tensor | None] | None = None,
    cost: Callable[[Tensor, Tensor], Tensor] = squared_euclidean,
    max_cells: int = _CELLS,
    **options: Any,
) -> Tensor:
    """The distances of all pairs of series: of each series in x to each series in y, (K, L).

    A distance whose first parameter is called `cost`, such as dtw, soft_dtw and smoothed_dtw, is called as
    distance(cost(x, y), lengths=..., **options). Any other distance, such as soft_dtw_divergence, is called as
    distance(x, y, lengths=..., **options) with series (k, 1, n, d) and (1, l, m, d), lengths (k, 1) and (1, l). Both
    return (k, l).

    Series are compared in chunks of similar lengths. All pairs of a chunk together have at most `max_cells` cells; a
    pair of series of n and m points has n m. So memory is bounded if no gradient is required.

    Shapes:
        x (K, n, d) or a list of (n_k, d) or a PackedSequence, y (L, m, d) likewise; lengths a pair of (K,) and (L,)
        for tensors that are padded, either of them None; result (K, L)

    Example:
        >>> x = [torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]])]
        >>> pm.pairwise(x, [torch.tensor([[0.0], [0.0], [1.0]])])
        tensor([[ 0.],
                [22.]])
        >>> pm.pairwise(x, x, pm.soft_dtw, gamma=1.0)
        tensor([[-0.5514, 13.0000],
                [13.0000,  0.0000]])
    """
    _check.whole(max_cells, "max_cells")
    for_x, for_y = lengths or (None, None)
    (x, n), (y, m) = (_collection(t, of, name) for t, of, name in ((x, for_x, "x"), (y, for_y, "y")))
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"x and y must have points of one size; got {tuple(x.shape)} and {tuple(y.shape)}")
    x, y = x.to(torch.promote_types(x.dtype, y.dtype)), y.to(torch.promote_types(x.dtype, y.dtype))
    takes_costs = next(iter(inspect.signature(distance).parameters), "") == "cost"
    rows = []
    by_length = n.argsort(stable=True), m.argsort(stable=True)
    of_x, of_y = n[by_length[0]].tolist(), m[by_length[1]].tolist()
    # a square of pairs repeats the fewest series
    width = max(1, min(len(of_y), math.isqrt(max_cells // max(1, max(of_x, default=0) * max(of_y, default=0)))))
    for a in _chunks(of_x, max(of_y, default=0) * width, max_cells):
        at = by_length[0][a]
        left = x[at, : of_x[a.stop - 1]]
        row = []
        for b in _chunks(of_y, of_x[a.stop - 1] * (a.stop - a.start), max_cells):
            to = by_length[1][b]
            right = y[to, : of_y[b.stop - 1]]
            found = _compared(distance, takes_costs, cost, left, right, (n[at], m[to]), options)
            if found.shape != (len(left), len(right)):
                raise ValueError(
                    f"distance must return {(len(left), len(right))}, a number for each pair; got {tuple(found.shape)}"
                )
            row.append(found)
        rows.append(torch.cat(row, 1) if row else x.new_zeros(len(left), 0))
    whole = torch.cat(rows) if rows else x.new_zeros(0, len(y))
    back = by_length[0].argsort(), by_length[1].argsort()
    return whole[back[0]][:, back[1]]


def _compared(
    distance: Callable[..., Tensor],
    takes_costs: bool,
    cost: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    lengths: Pair,
    options: dict[str, Any],
) -> Tensor:
    """Distances (k, l) of x (k, n, d) to y (l, m, d)."""
    a, b, n, m = x.unsqueeze(1), y.unsqueeze(0), lengths[0].unsqueeze(1), lengths[1].unsqueeze(0)
    if takes_costs:
        batch = (len(x), len(y))
        return distance(cost(a, b), lengths=(n.expand(batch), m.expand(batch)), **options)
    return distance(a, b, lengths=(n, m), **options)


def _chunks(sizes: list[int], each: int, most: int) -> Iterator[slice]:
    """Slices of ascending sizes, whose largest size times `each` times their number is at most `most`."""
    start = 0
    while start < len(sizes):
        stop = start + 1
        while stop < len(sizes) and (stop + 1 - start) * sizes[stop] * each <= most:
            stop += 1
        yield slice(start, stop)
        start = stop


def _collection(series: Tensor | Ragged, lengths: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """Series (K, n, d) with zeros for padding, and their lengths (K,)."""
    if not isinstance(series, Tensor) and isinstance(series, list | tuple) and not len(series):
        raise ValueError(f"{name} must be a list of series (n, d), not an empty one")
    whole, of = padded_series(series, lengths, name)
    _check.floating(whole, name)
    if whole.dim() != 3:
        raise ValueError(f"{name} must be (K, n, d), or a list of (n, d); got {tuple(whole.shape)}")
    return clean_series(whole, of, name)
