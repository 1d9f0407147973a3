"""Elastic distances of series beside dynamic time warping: pairs, deletions and insertions have costs of their own.

    D(i, j) = min(D(i-1, j-1) + pair(i, j), D(i-1, j) + deletion(i, j), D(i, j-1) + insertion(i, j))

With `gamma` above 0, each distance is smoothed by the entropy over paths, as `soft_dtw` is:

    - gamma log sum over paths A of exp(-cost(A) / gamma)
"""

import torch
from torch import Tensor

from polymax.smoothing import HardMax, Marginals
from polymax.structures import EditPath
from polymax.warping import clean_series

Pair = tuple[Tensor, Tensor]


def erp_distance(x: Tensor, y: Tensor, g: float = 0.0, lengths: Pair | None = None, gamma: float = 0.0) -> Tensor:
    """Return the edit distance with real penalty: a gap costs the distance to the value `g`.

        pair |x_i - y_j|, deletion |x_i - g|, insertion |y_j - g|, with Euclidean norms

    It is a metric. Its gradient in the series is that of the best path.

    Shapes: x (*batch, n, d) and y (*batch, m, d); lengths a pair of (*batch,), of x and of y; result (*batch,)

    Example:
        >>> erp_distance(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[2.0], [1.5]]))
        tensor(0.5000)

    See: Chen and Ng 2004, On the marriage of Lp-norms and edit distance.
    """
    x, y, lengths = _checked(x, y, lengths)
    return _distance(_far(x, y), _of_rows(_norm(x - g)), _of_columns(_norm(y - g)), lengths, gamma)


def edr_distance(x: Tensor, y: Tensor, epsilon: float, lengths: Pair | None = None) -> Tensor:
    """Return the edit distance on real sequences: the least number of edits, positions within `epsilon` being equal.

    Two positions are equal if they differ by at most epsilon in every channel.

    Shapes: x (*batch, n, d) and y (*batch, m, d); lengths a pair of (*batch,), of x and of y; result (*batch,)

    Example:
        >>> edr_distance(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[2.0], [1.5]]), epsilon=0.1)
        tensor(2.)

    See: Chen, Ozsu and Oria 2005, Robust and fast similarity search for moving object trajectories.
    """
    x, y, lengths = _checked(x, y, lengths)
    one = x.new_ones(())
    return _distance(1 - _equal(x, y, epsilon), one, one, lengths, 0.0)


def lcss_distance(
    x: Tensor, y: Tensor, epsilon: float, lengths: Pair | None = None, band: int | Tensor | None = None
) -> Tensor:
    """Return 1 less the length of the longest common subsequence, divided by the length of the shorter series.

    Two positions are equal if they differ by at most epsilon in every channel. `band` is a radius, or a bool tensor
    (n, m), outside of which no positions are equal. The distance is 0 if both series are empty, and 1 if one is.

    Shapes: x (*batch, n, d) and y (*batch, m, d); lengths a pair of (*batch,), of x and of y; result (*batch,)

    Example:
        >>> lcss_distance(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[2.0], [1.0]]), epsilon=0.1)
        tensor(0.)

    See: Vlachos, Kollios and Gunopulos 2002, Discovering similar multidimensional trajectories.
    """
    x, y, lengths = _checked(x, y, lengths)
    pairs = _equal(x, y, epsilon)
    if isinstance(band, int):
        i, j = torch.arange(x.shape[-2], device=x.device)[:, None], torch.arange(y.shape[-2], device=x.device)
        band = (i - j).abs() <= band
    if band is not None:
        pairs = torch.where(band, pairs, 0)
    none = x.new_zeros(())
    common = -_distance(-pairs, none, none, lengths, 0.0)
    shorter, longer = torch.minimum(*lengths), torch.maximum(*lengths)
    return torch.where(shorter > 0, 1 - common / shorter.clamp(min=1), (longer > 0).to(x.dtype))


def msm_distance(x: Tensor, y: Tensor, c: float = 1.0, lengths: Pair | None = None, gamma: float = 0.0) -> Tensor:
    """Return the move-split-merge distance of series with one channel: splits and merges cost at least `c`.

        pair |x_i - y_j|; deletion c if x_i is between x_{i-1} and y_j, else c + min(|x_i - x_{i-1}|, |x_i - y_j|)

    Insertions cost the same with x and y exchanged. The first positions are a pair; a series without positions is
    infinitely far from others. It is a metric that does not change if both series are shifted.

    Shapes: x (*batch, n, 1) and y (*batch, m, 1); lengths a pair of (*batch,), of x and of y; result (*batch,)

    Example:
        >>> msm_distance(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[0.0], [2.0]]), c=0.5)
        tensor(1.5000)

    See: Stefan, Athitsos and Das 2013, The move-split-merge metric for time series.
    """
    x, y, lengths = _checked(x, y, lengths)
    if x.shape[-1] != 1:
        raise ValueError(f"the move-split-merge distance is one of series with one channel; got {x.shape[-1]}")
    return _distance(_far(x, y), _begun(_split(x, y, c)), _begun(_split(y, x, c).mT), lengths, gamma)


def twe_distance(
    x: Tensor, y: Tensor, nu: float = 0.001, lam: float = 1.0, lengths: Pair | None = None, gamma: float = 0.0
) -> Tensor:
    """Return the time warp edit distance: `nu` is the stiffness in time, `lam` the cost of a deletion.

        pair |x_i - y_j| + |x_{i-1} - y_{j-1}| + 2 nu |i - j|, deletion |x_i - x_{i-1}| + nu + lam

    A position of zeros stands before each series; the first positions are a pair; a series without positions is
    infinitely far from others. Positions are one unit of time apart.

    Shapes: x (*batch, n, d) and y (*batch, m, d); lengths a pair of (*batch,), of x and of y; result (*batch,)

    Example:
        >>> twe_distance(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[0.0], [2.0]]), nu=0.0)
        tensor(2.)

    See: Marteau 2009, Time warp edit distance with stiffness adjustment for time series matching.
    """
    x, y, lengths = _checked(x, y, lengths)
    before_x, before_y = (torch.nn.functional.pad(t[..., :-1, :], (0, 0, 1, 0))[..., : t.shape[-2], :] for t in (x, y))
    i, j = torch.arange(x.shape[-2], device=x.device)[:, None], torch.arange(y.shape[-2], device=x.device)
    pairs = _far(x, y) + _far(before_x, before_y) + 2 * nu * (i - j).abs()
    deletion, insertion = (_norm(t - before) + nu + lam for t, before in ((x, before_x), (y, before_y)))
    shape = pairs.shape
    gaps = _begun(deletion.unsqueeze(-1).expand(shape)), _begun(insertion.unsqueeze(-2).expand(shape))
    return _distance(pairs, *gaps, lengths, gamma)


def _checked(x: Tensor, y: Tensor, lengths: Pair | None) -> tuple[Tensor, Tensor, Pair]:
    """Series of one batch shape with zeros for padding, and their lengths; `pairwise` gives (k, 1) and (1, l)."""
    x, rows = clean_series(x, lengths and lengths[0], "x")
    y, columns = clean_series(y, lengths and lengths[1], "y")
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        batch = None
    if batch is None or x.shape[-1] != y.shape[-1]:
        came = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise ValueError(f"x and y must be (*batch, n, d) and (*batch, m, d), alike in batch and channels; got {came}")
    x, y = (t.expand(*batch, *t.shape[-2:]) for t in (x, y))
    return x, y, (rows.expand(batch), columns.expand(batch))


def _norm(t: Tensor) -> Tensor:
    """Euclidean norms over channels, with a gradient of 0 at 0."""
    if t.shape[-1] == 1:
        return t[..., 0].abs()
    squares = t.square().sum(-1)
    return torch.where(squares == 0, 0, torch.where(squares == 0, 1, squares).sqrt())


def _far(x: Tensor, y: Tensor) -> Tensor:
    """Distances (*batch, n, m) of all positions."""
    return _norm(x.unsqueeze(-2) - y.unsqueeze(-3))


def _equal(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """1 for positions that differ by at most epsilon in every channel, else 0, and NaN beside a NaN, (*batch, n, m)."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0; got {epsilon}")
    equal = ((x.unsqueeze(-2) - y.unsqueeze(-3)).abs() <= epsilon).all(-1)
    unknown = x.isnan().any(-1).unsqueeze(-1) | y.isnan().any(-1).unsqueeze(-2)
    return torch.where(unknown, torch.nan, equal.to(x.dtype))


def _split(x: Tensor, y: Tensor, c: float) -> Tensor:
    """The costs (*batch, n, m) of positions of x that repeat the one before, beside positions of y."""
    value, other = x, y.mT
    before = torch.nn.functional.pad(x[..., :-1, :], (0, 0, 1, 0))[..., : x.shape[-2], :]
    between = ((before <= value) & (value <= other)) | ((before >= value) & (value >= other))
    return c + torch.where(between, 0, torch.minimum((value - before).abs(), (value - other).abs()))


def _of_rows(cost: Tensor) -> Tensor:
    """Costs of deletions (*batch, n + 1, 1) by the points where they end, whatever the column."""
    return torch.nn.functional.pad(cost, (1, 0)).unsqueeze(-1)


def _of_columns(cost: Tensor) -> Tensor:
    """Costs of insertions (*batch, 1, m + 1) by the points where they end, whatever the row."""
    return torch.nn.functional.pad(cost, (1, 0)).unsqueeze(-2)


def _begun(cost: Tensor) -> Tensor:
    """Costs (*batch, n + 1, m + 1) of steps from costs (*batch, n, m), infinite before the first row and column."""
    return torch.nn.functional.pad(cost, (1, 0, 1, 0), value=torch.inf)


def _distance(pairs: Tensor, deletion: Tensor, insertion: Tensor, lengths: Pair, gamma: float) -> Tensor:
    """The cost of the best path, or its smoothed cost; costs of gaps broadcast to (*batch, n + 1, m + 1)."""
    if gamma < 0:
        raise ValueError(f"gamma must be at least 0; got {gamma}")
    edits = EditPath("linear", lengths)
    smooth = Marginals(edits, gamma) if gamma else HardMax(edits)
    # 0 - value instead of -value, so that a cost of 0 is not -0
    return 0 - smooth.max(edits.steps(-pairs, -deletion, -insertion))
