"""Fenchel-Young losses of one choice among n: cross_entropy's options, with any regularizer."""

from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.losses import sharded
from polymax.regularizers import Gini, Regularizer, Tsallis
from polymax.sharding.placements import any_sharded


def of_classes(
    smooth: Regularizer,
    scores: Tensor,
    y: Tensor,
    cost: Tensor | None = None,
    reduction: str = "mean",
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The loss max(scores + cost) + Omega(y) - <scores, y> of classes along `dim`."""
    if any_sharded((scores, y, cost, weight)):
        # rounded once, after the reduction
        local = partial(of_classes, dtype=torch.promote_types(scores.dtype, torch.float32))
        found = sharded.of_classes(
            local, smooth, scores, y, cost, reduction, dim, weight, ignore_index, label_smoothing
        )
        return found.to(scores.dtype if dtype is None else dtype)
    _check.floating(scores, "scores")
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor of indices or distributions; got {type(y).__name__}")
    _check.number(label_smoothing, "label_smoothing", "in [0, 1]", lambda e: (e >= 0) & (e <= 1))
    kept = scores.dtype if dtype is None else dtype
    rows, x = smooth._rows(wide(scores), dim)
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must be ({x.shape[-1]},), one per class; got {tuple(weight.shape)}")
    # the loss does not change when scores are shifted, and is exact around 0
    top = x.detach().amax(-1, keepdim=True)
    x = x - torch.where(top.isfinite(), top, 0)
    if cost is not None:
        _check.broadcasts(cost, scores, "cost")
        cost = cost.to(x.dtype).expand(scores.shape).movedim(dim, -1)
    if not y.is_floating_point() and y.shape == x.shape[:-1]:
        # a row that is left out may hold anything, and has no gradient
        ignored = y == ignore_index
        if not _check.readable(y) or bool(ignored.any()):
            x = torch.where(ignored.unsqueeze(-1), 0, x)
    value = rows.max(x if cost is None else x + cost)
    if y.is_floating_point():
        return _to_distributions(rows, x, value, y, weight, label_smoothing, reduction, dim).to(kept)
    return _to_indices(rows, x, value, y, weight, ignore_index, label_smoothing, reduction).to(kept)


def sparsemax_loss(
    scores: Tensor,
    y: Tensor,
    reduction: str = "mean",
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The Fenchel-Young loss of sparsemax, with cross_entropy's options.

    The loss has the dtype of the scores, as that of cross_entropy, or `dtype`: float32 keeps the digits of a mean over
    many rows in half precision.

    Example:
        >>> sparsemax_loss(torch.tensor([[3.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.)

    See: Martins and Astudillo 2016, section 3.
    """
    return of_classes(
        Gini(), scores, y, None, reduction, dim=dim, weight=weight, ignore_index=ignore_index,
        label_smoothing=label_smoothing, dtype=dtype,
    )  # fmt: skip


@overload
def entmax_loss(
    scores: Tensor, y: Tensor, alpha: float | Tensor = 1.5, reduction: str = "mean", *, dim: int = -1,
    weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    return_normalizer: Literal[False] = False, dtype: torch.dtype | None = None,
) -> Tensor: ...  # fmt: skip


@overload
def entmax_loss(
    scores: Tensor, y: Tensor, alpha: float | Tensor = 1.5, reduction: str = "mean", *, dim: int = -1,
    weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    return_normalizer: Literal[True], dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def entmax_loss(
    scores: Tensor,
    y: Tensor,
    alpha: float | Tensor = 1.5,
    reduction: str = "mean",
    *,
    dim: int = -1,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_normalizer: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The Fenchel-Young loss of alpha-entmax, with cross_entropy's options; alpha = 1 is cross_entropy of classes.

    Of distributions, alpha = 1 is the Kullback-Leibler divergence from them: cross_entropy less their entropy. The loss
    has the dtype of the scores, as that of cross_entropy, or `dtype`: float32 keeps the digits of a mean over many rows
    in half precision.

    With alpha = 1, `z_loss` adds z_loss logsumexp(scores)^2 to the loss of each row, whatever the weight of its class,
    and `return_normalizer=True` returns the loss and the logsumexp of each row, with its gradient; 0 for rows that
    ignore_index leaves out.

    Example:
        >>> entmax_loss(torch.tensor([[3.0, 0.5, 0.0]]), torch.tensor([0]))
        tensor(0.)

    See: Peters, Niculae and Martins 2019, section 3.2.
    """
    check_normalizer(alpha, z_loss, return_normalizer, any_sharded((scores, y, weight, alpha)))
    kept = scores.dtype if dtype is None else dtype
    loss = of_classes(
        Tsallis(alpha), scores, y, None, reduction, dim=dim, weight=weight, ignore_index=ignore_index,
        label_smoothing=label_smoothing, dtype=wide(scores).dtype if z_loss else kept,
    )  # fmt: skip
    if z_loss == 0 and not return_normalizer:
        return loss
    counted = torch.ones_like(y.select(dim, 0), dtype=torch.bool) if y.is_floating_point() else y != ignore_index
    normalizer = normalizer_of(wide(scores).movedim(dim, -1), counted)
    loss = with_penalty(loss, normalizer, counted, z_loss, reduction).to(kept)
    return (loss, normalizer) if return_normalizer else loss


def check_normalizer(alpha: float | Tensor, z_loss: float, return_normalizer: bool, among_processes: bool) -> None:
    """Raise if z_loss or the normalizer is given with another alpha than 1, or with DTensors."""
    _check.number(z_loss, "z_loss", "at least 0 and finite", lambda z: 0 <= z < torch.inf)
    if not z_loss and not return_normalizer:
        return
    if among_processes:
        raise TypeError("z_loss and return_normalizer need plain tensors; got a DTensor: gather it with full_tensor()")
    if isinstance(alpha, Tensor) or alpha != 1:
        came = "a tensor" if isinstance(alpha, Tensor) else alpha
        raise ValueError(
            f"z_loss and return_normalizer need alpha=1, whose weights are divided by a sum; got alpha = {came}"
        )


def normalizer_of(x: Tensor, counted: Tensor) -> Tensor:
    """The logsumexp of each row of x that counts; 0 for others, which may hold anything and have no gradient."""
    return torch.where(counted, torch.where(counted.unsqueeze(-1), x, 0).logsumexp(-1), 0)


def with_penalty(loss: Tensor, normalizer: Tensor, counted: Tensor, z_loss: float, reduction: str) -> Tensor:
    """The loss with z_loss normalizer^2, whose mean is over the rows that count."""
    if z_loss == 0:
        return loss
    each = z_loss * normalizer.square()
    if reduction == "mean":
        return loss + each.sum() / counted.sum()
    return loss + (each.sum() if reduction == "sum" else each)


def _to_indices(
    rows: Regularizer,
    x: Tensor,
    value: Tensor,
    y: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    reduction: str,
) -> Tensor:
    if y.shape != x.shape[:-1]:
        raise ValueError(f"y must be {tuple(x.shape[:-1])}, the scores without dim; got {tuple(y.shape)}")
    y = y.long()
    valid = y != ignore_index
    y = torch.where(valid, y, 0)
    if _check.readable(y):
        wrong = (y < 0) | (y >= x.shape[-1])
        if bool(wrong.any()):
            came = int(y[wrong][0])
            raise ValueError(f"y must hold classes in [0, {x.shape[-1]}) or ignore_index; got {came}")
    weights = x.new_ones(x.shape[-1]) if weight is None else weight.to(x.dtype)
    # under vmap, weights[y] fails for a single class
    chosen = torch.where(valid, weights.index_select(0, y.reshape(-1)).reshape(y.shape), 0)
    loss = value - x.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if not rows.zero_at_vertices:
        loss = loss + rows.omega(torch.nn.functional.one_hot(y, x.shape[-1]).to(x.dtype))
    loss = torch.where(valid, chosen * loss, 0)
    if smoothing:
        # the mean over classes of their losses
        losses = value.unsqueeze(-1) - x
        if not rows.zero_at_vertices:
            losses = losses + _omega_of_vertices(rows, x)
        spread = (weights * losses).mean(-1)
        loss = (1 - smoothing) * loss + smoothing * torch.where(valid, spread, 0)
    if reduction == "mean":
        return loss.sum() / chosen.sum()
    return loss.sum() if reduction == "sum" else loss


def _to_distributions(
    rows: Regularizer,
    x: Tensor,
    value: Tensor,
    y: Tensor,
    weight: Tensor | None,
    smoothing: float,
    reduction: str,
    dim: int,
) -> Tensor:
    q = wide(y).movedim(dim, -1)
    if q.shape != x.shape:
        raise ValueError(f"y must be distributions shaped like the scores {tuple(x.shape)}; got {tuple(q.shape)}")
    if smoothing:
        q = (1 - smoothing) * q + smoothing / x.shape[-1]
    weighted = q if weight is None else q * weight.to(x.dtype)
    linear = torch.where(weighted == 0, 0, weighted * x).sum(-1)
    loss = weighted.sum(-1) * (value + rows.omega(q)) - linear
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def _omega_of_vertices(rows: Regularizer, x: Tensor) -> Tensor:
    """Omega of each vertex, as a row for each row of x."""
    n = x.shape[-1]
    vertices = torch.eye(n, dtype=x.dtype, device=x.device).reshape(n, *[1] * (x.dim() - 1), n)
    return rows.omega(vertices.expand(n, *x.shape)).movedim(0, -1)
