"""Attention by sparsemax or entmax, without a matrix of all scores.

    x = softcap tanh(scale q k^T / softcap) + mask        u = (alpha - 1) x        p = (u - tau)_+ ^ (1 / (alpha - 1))

with tau such that p sums to 1 over the keys that a query may see, and the sink of its head if there is one. Query i has
position i + offset among the keys and sees the keys from `left` before to `right` after that position; -1 means no
limit. If `starts_q` and `starts_k`, (sequences + 1,) integers, are given, queries and keys are packed sequences, and
attention stays within each sequence. Weights are dropped with probability `dropout`, by a hash of `seed`, (1,) int64:
see dropout.py. The weights that are kept are divided by 1 - dropout. On CUDA, `short` takes the kernels of short rows:
see short_rows.py.

The operator returns the context `out` and the tensors saved for its gradient: the mean of values under s = p^(2 -
alpha), `tau`, the size of the support, and a `plan` and `lists` in which a device records the places of nonzero
weights. Only the code of that device reads `plan` and `lists`. `tau` is a pair of numbers for each row, since a single
number would lose all its digits for huge scores: the largest score, in a unit that the device chooses, and how far the
threshold is below it in u. For a row that sees no key the pair is inf and 0. In half precision the support of short
rows may count keys that leave it in the last step to the threshold.

    dx = s (dp - <s, dp> / sum s)        dp_j = grad . v_j, so that <s, dp> / sum s = grad . mean

With dropout, v_j is multiplied, both here and in the mean, by the factor of its weight: 0 or 1 / (1 - dropout).

Shapes: q (B, H, L, D); k (B, G, S, D) and v (B, G, S, V), where G divides H; mask broadcasts to (B, H, L, S), bool
(True = keep) or float (is added); sinks and alphas (H,); out and mean (B, H, L, V); tau (2, B, H, L); support
(B, H, L)
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.kernels.sparse_attention.options import SAVED, SCHEMA, Options, of_backward
from polymax.kernels.sparse_attention.tiles import lists_like, plan_size


def _fake(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    options = Options(*given)
    rows = q.shape[:-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    sequences = q.shape[0] if options.starts_q is None else len(options.starts_q) - 1
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty((2, *rows), dtype=wide),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty(plan_size(q, sequences * q.shape[1], options), dtype=torch.int32),
        lists_like(q, options),
    )


def _fake_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    (q, k, v, _, tau, *_), mask_gradient, options = of_backward(given)
    mask = options.mask
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        torch.empty_like(tau[0]),
        torch.empty_like(tau[0]),
        tau.new_empty(mask.shape if mask is not None and mask_gradient else 0),
    )


sparse_attention = declare(
    __name__,
    f"sparse_attention(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
# the gradients of q, k, v, of alpha and of the sink by row (B, H, L), and of the mask
sparse_attention_backward = declare(
    __name__,
    f"sparse_attention_backward(Tensor grad, {SAVED}, bool mask_gradient, {SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_backward,
)
