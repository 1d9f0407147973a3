"""Losses and their gradients once more: float64, some rows at a time, without a kernel of polymax."""

import torch
from torch import Tensor

from benchmarks.simplex.oracles import entmax as entmax_weights
from polymax import WordDistribution

# logits at once
ENTRIES = 1 << 25


def gradients(
    alpha: float, hidden: Tensor, weight: Tensor, target: Tensor | WordDistribution
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss, and its gradients of hidden and weight; a target is one word for each row, or a list of words."""
    lists = isinstance(target, WordDistribution)
    ids = target.ids if isinstance(target, WordDistribution) else target.unsqueeze(1)
    q = target.probs.double() if isinstance(target, WordDistribution) else torch.ones_like(ids, dtype=torch.float64)
    h, w = hidden.double(), weight.double()
    dh, dw = torch.empty_like(h), torch.zeros_like(w)
    total = h.new_zeros(())
    for rows in torch.arange(len(h), device=h.device).split(max(ENTRIES // len(w), 1)):
        x = h[rows] @ w.T
        own = (q[rows] * x.gather(1, ids[rows])).sum(1)
        if lists:
            # Omega of the target
            own += (1 - (q[rows] ** alpha).sum(1)) / (alpha * (alpha - 1))
        if alpha == 1:
            total += (x.logsumexp(1) - own).sum()
            p = x.softmax(1)
        else:
            p = entmax_weights(alpha)(x)
            p /= p.sum(1, keepdim=True)
            omega = (p**alpha).sum(1).sub(1) / (alpha * (alpha - 1))
            total += ((x * p).sum(1) - omega - own).sum()
        p.scatter_add_(1, ids[rows], -q[rows])
        dh[rows] = p @ w / len(h)
        dw += p.T @ h[rows] / len(h)
    return total / len(h), dh, dw
