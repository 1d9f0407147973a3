"""Attention by sparsemax or entmax, without a matrix of all scores.

    x = softcap tanh(scale q k^T / softcap) + mask        u = (alpha - 1) x        p = (u - tau)_+ ^ (1 / (alpha - 1))

with tau such that p sums to 1 over the keys that a query may see, and the sink of its head where there is one. Query i
stands at key i + offset and sees the keys from `left` before to `right` after it; -1 is no limit. With `starts_q` and
`starts_k`, (sequences + 1,) integers, queries and keys are packed sequences, and each is attention of its own.

The operator gives the context `out`, and for its gradient the mean of values under s = p^(2 - alpha), `tau`, the size
of the support, and a `plan` and `lists`, in which a device notes where weights are not zero: no other code reads them.

    dx = s (dp - <s, dp> / sum s)        dp_j = grad . v_j, so that <s, dp> / sum s = grad . mean

Shapes: q (B, H, L, D); k (B, G, S, D) and v (B, G, S, V), where G divides H; mask broadcasts to (B, H, L, S), bool
(True = keep) or float (is added); sinks and alphas (H,); out and mean (B, H, L, V); tau and support (B, H, L)
"""

import torch
from torch import Tensor

from polymax._dispatch import declare
from polymax.kernels.sparse_attention.tiles import lists_like, plan_size

_OPTIONS = (
    "float alpha, Tensor? alphas, Tensor? mask, Tensor? sinks, Tensor? starts_q, Tensor? starts_k, "
    "int longest_q, int longest_k, float scale, float softcap, int left, int right, int offset"
)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = q.shape[:-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    sequences = q.shape[0] if starts_q is None else len(starts_q) - 1
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(rows, dtype=wide),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty(plan_size(q, sequences * q.shape[1], longest_q, longest_k), dtype=torch.int32),
        lists_like(q, longest_k),
    )


def _fake_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mean: Tensor,
    tau: Tensor,
    plan: Tensor,
    lists: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        torch.empty_like(tau),
        torch.empty_like(tau),
        tau.new_empty(mask.shape if mask is not None and mask_gradient else 0),
    )


sparse_attention = declare(
    __name__,
    f"sparse_attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
# the gradients of q, k, v, of alpha and of the sink by row (B, H, L), and of the mask
sparse_attention_backward = declare(
    __name__,
    "sparse_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor mean, Tensor tau, "
    "Tensor plan, Tensor lists, "
    f"{_OPTIONS}, bool mask_gradient) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_backward,
)
