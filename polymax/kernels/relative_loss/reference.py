"""Losses relative to a reference in blocks of rows, in torch, with thresholds in float64."""

from collections.abc import Iterator

import torch
from torch import Tensor

from polymax.backend.function import without_autocast
from polymax.backend.widen import wide
from polymax.kernels.linear_loss.reference import cap_slope, capped_logits, spread_mean
from polymax.kernels.relative_loss import ENTRIES
from polymax.kernels.relative_threshold.reference import solve, usable, weights_at

# words of a weight in half precision that are widened at once
WIDENED = 8192


def relative_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reference: Tensor,
    named: Tensor | None,
    spread: Tensor | None,
    alpha: float,
    softcap: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n, real = len(hidden), wide(hidden[:0]).dtype
    value, mean, top = (hidden.new_zeros(n, dtype=real) for _ in range(3))
    root = hidden.new_zeros(n, dtype=torch.float64)
    chosen = hidden.new_zeros((n, 0) if named is None else named.shape, dtype=real)
    for rows in _blocks(n, len(weight)):
        x = _scores(hidden[rows], weight, bias, softcap, scale)
        q = _of(reference, rows).to(x.dtype).expand(x.shape)
        p, t, most = solve(x, q, torch.full((len(x),), alpha, dtype=torch.float64, device=x.device))
        z = x.to(p.dtype) - most
        # on the support u^(alpha - 1) = 1 + (alpha - 1) (z + t), so that the divergence is <p, z + t> / alpha
        moment = (p * torch.where(p == 0, 0, z)).sum(-1)
        found = ((alpha - 1) * moment - t.squeeze(-1)) / alpha
        dead = ~usable(x, q).any(-1) & ~t.squeeze(-1).isnan()
        found = torch.where(dead, -torch.inf, found)
        counted = torch.ones_like(dead)
        if named is not None:
            there = named[rows] >= 0
            counted = there.any(-1)
            chosen[rows] = torch.where(there, z.gather(-1, named[rows].clamp(min=0)), 0).to(real)
        value[rows] = torch.where(counted, found, 0).to(real)
        top[rows], root[rows] = most.squeeze(-1).to(real), t.squeeze(-1)
        if spread is not None:
            mean[rows] = torch.where(counted, spread_mean(z, _of(spread, rows)), 0).to(real)
    return value, chosen, mean, top, root


def relative_loss_backward(
    of_value: Tensor,
    of_chosen: Tensor,
    of_mean: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reference: Tensor,
    named: Tensor | None,
    spread: Tensor | None,
    alpha: float,
    softcap: float,
    scale: float,
    top: Tensor,
    root: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    real = wide(hidden[:0]).dtype
    dh, dw = torch.empty_like(hidden), torch.zeros_like(weight, dtype=real)
    db = hidden.new_zeros(len(weight), dtype=real)
    for rows in _blocks(len(hidden), len(weight)):
        x = _scores(hidden[rows], weight, bias, softcap, scale)
        q = _of(reference, rows).to(x.dtype).expand(x.shape)
        w = torch.where(usable(x, q), q, 0).to(root.dtype)
        z = torch.where(w > 0, x - top[rows].unsqueeze(-1), 0).to(root.dtype)
        p = weights_at(z, w, root[rows].unsqueeze(-1), torch.full_like(w[:, :1], alpha)).to(real)
        dx = of_value[rows].unsqueeze(-1) * p
        if spread is not None:
            dx = dx + of_mean[rows].unsqueeze(-1) * _of(spread, rows).to(real)
        if named is not None:
            there = named[rows] >= 0
            dx = dx.scatter_add(-1, named[rows].clamp(min=0), torch.where(there, of_chosen[rows], 0).to(real))
            dx = torch.where(there.any(-1, keepdim=True), dx, 0)
        dx = dx * cap_slope(x, softcap, scale)
        db += dx.sum(0)
        with without_autocast(hidden.device):
            whole = wide(hidden[rows])
            back = torch.zeros_like(whole)
            for words in _parts(weight):
                back += dx[:, words] @ wide(weight[words])
                dw[words] += dx[:, words].mT @ whole
            dh[rows] = back.to(dh.dtype)
    return dh, dw.to(weight.dtype), db


def _blocks(n: int, words: int) -> Iterator[slice]:
    """Slices of rows whose logits are in memory at once."""
    size = max(ENTRIES // words, 1)
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def _parts(weight: Tensor) -> Iterator[slice]:
    """Slices of words that are widened at once: all, unless the weight is in half precision."""
    size = len(weight) if weight.dtype.itemsize >= 4 else WIDENED
    return (slice(first, first + size) for first in range(0, len(weight), size))


def _of(t: Tensor, rows: slice) -> Tensor:
    """Return the rows of a tensor (words,) or (n, words)."""
    return t if t.dim() == 1 else t[rows]


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, scale: float) -> Tensor:
    with without_autocast(hidden.device):
        whole = wide(hidden)
        x = torch.cat([whole @ wide(weight[words]).mT for words in _parts(weight)], -1)
    return capped_logits(x if bias is None else x + bias.to(x.dtype), softcap, scale)
