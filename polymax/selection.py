"""Soft and random selections, by the names that people look for."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.estimators import PerturbAndMap, Relaxed
from polymax.mappings import sparsemax
from polymax.regularizers.entropies import positive
from polymax.smoothing import Marginals
from polymax.structures import Simplex

_EPS = 1e-10


class SoftTopK(NamedTuple):
    """The k largest entries as weighted means: their values and positions (*batch, k), and weights (*batch, k, n).

    Example:
        >>> soft_topk(torch.tensor([1.0, 4.0, 3.0]), 2, gamma=0.5)._fields
        ('values', 'indices', 'weights')
    """

    values: Tensor
    indices: Tensor
    weights: Tensor


def soft_topk(
    x: Tensor,
    k: int,
    gamma: float | Tensor = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    mapping: Callable[[Tensor], Tensor] = sparsemax,
) -> SoftTopK:
    """Return the k largest entries like `torch.topk`, with positions that carry gradients.

        weights[r, i] = sparsemax over i of -|x_(r) - x_i| / gamma        x_(r) the entry of rank r
        values = weights x        indices = weights (0, 1, ..., n - 1)

    Entries farther than gamma from x_(r) have no weight, so that small gammas give what `torch.topk` gives. With
    `mapping=pm.softmax`, all entries have weight. `weights @ t` selects rows of any t (*batch, n, d), with a gradient.
    Ranks beyond the number of entries that are neither masked nor -inf give zeros.

    Arguments:
        x: scores (*batch, n)
        k: the number of entries, at most n
        gamma: the temperature, a number or a tensor that broadcasts to the batch
        dim: the dimension of the entries; in `weights`, the last two dims are ranks and entries, whatever dim
        mask: True for entries that count
        mapping: a mapping of the last dimension, such as pm.softmax

    Returns:
        `SoftTopK(values, indices, weights)`

    Example:
        >>> best = soft_topk(torch.tensor([1.0, 4.0, 3.0]), 2, gamma=0.5)
        >>> best.values, best.indices
        (tensor([4., 3.]), tensor([1., 2.]))
        >>> soft_topk(torch.tensor([1.0, 4.0, 3.0]), 1, gamma=2.0).weights
        tensor([[0.0000, 0.7500, 0.2500]])

    See: Prillo and Eisenschlos 2020, SoftSort: A continuous relaxation for the argsort operator.
    """
    _check.floating(x, "x")
    if not x.dim():
        raise ValueError("x must be (*batch, n); got ()")
    positive(gamma, "gamma")
    _check.function(mapping, "mapping")
    rows = _check.masked(x, mask).movedim(dim, -1)
    n, k = rows.shape[-1], _check.integer(k, "k")
    if not 0 <= k <= n:
        raise ValueError(f"k must be an integer from 0 to {n}, the number of entries; got {k!r}")
    if isinstance(gamma, Tensor) and not _check.broadcastable(gamma.shape, rows.shape[:-1]):
        raise ValueError(f"gamma must broadcast to the batch {tuple(rows.shape[:-1])}; got {tuple(gamma.shape)}")
    known = rows > -torch.inf
    # entries of NaN stay, and make their row NaN
    kept = torch.where(known | rows.isnan(), rows, 0)
    top = rows.topk(k).indices
    ranked = kept.gather(-1, top).unsqueeze(-1)
    scale = gamma.unsqueeze(-1).unsqueeze(-1) if isinstance(gamma, Tensor) and gamma.dim() else gamma
    pairs = -(ranked - kept.unsqueeze(-2)).abs() / scale
    either = known.gather(-1, top).unsqueeze(-1) & known.unsqueeze(-2) | pairs.isnan()
    weights = mapping(pairs.masked_fill(~either, -torch.inf)).to(x.dtype)
    places = torch.arange(n, device=x.device, dtype=x.dtype)
    values = (weights * kept.unsqueeze(-2)).sum(-1)
    return SoftTopK(values.movedim(-1, dim), (weights * places).sum(-1).movedim(-1, dim), weights)


def gumbel_softmax(
    logits: Tensor,
    tau: float = 1.0,
    hard: bool = False,
    eps: float = _EPS,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return a draw of softmax(logits), relaxed or as one-hot vectors: `torch.nn.functional.gumbel_softmax`.

        y = softmax((logits + z) / tau),    z Gumbel noise

    With `hard`, the result is the one-hot vector of the largest entry of y, with the gradient of y. It is
    `pm.PerturbAndMap(pm.Simplex(), through=pm.Marginals(pm.Simplex(), gamma=tau))`, and `pm.Relaxed(...)` without
    `hard`, which have the same for any structure. `eps` has no effect, as in torch, and values other than torch's
    default give a warning.

    Arguments:
        logits: scores (*batch, n)
        tau: the temperature
        hard: True for one-hot vectors
        eps: without effect; accepted so that positional calls of torch's function work
        dim: the dimension of the choice
        mask: True for entries that may be chosen
        generator: the source of the noise

    Returns:
        a tensor like logits; a fully masked row gives zeros

    Example:
        >>> gumbel_softmax(torch.tensor([0.0, 40.0, 1.0]), tau=0.5, hard=True)
        tensor([0., 1., 0.])

    See: Jang, Gu and Poole 2017, Categorical reparameterization with Gumbel-softmax; Maddison, Mnih and Teh 2017.
    """
    _check.floating(logits, "logits")
    if eps != _EPS:
        warnings.warn("eps of gumbel_softmax has no effect, as in torch", stacklevel=2)
    soft = Marginals(Simplex(), gamma=tau)
    scores = _check.masked(logits, mask).movedim(dim, -1)
    draw = PerturbAndMap(Simplex(), through=soft) if hard else Relaxed(soft)
    return draw(scores, generator=generator).movedim(-1, dim)
