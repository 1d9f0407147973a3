"""Sparse attention in blocks of queries, each with all keys that it sees: memory grows with the length, not its square.

Forward, and again backward, scores are computed by one product of matrices in registers. Everything else is done for
the few keys of a row that have weight: see cpu_scores.py.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.sparse_attention.cpu_contexts import contexts
from polymax.kernels.sparse_attention.cpu_gradients import gradients
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT
from polymax.kernels.sparse_attention.numba_vectors import BYTES
from polymax.kernels.widen import wide

# work items of the backward pass, where there are not as many heads: parts of the queries, with gradients of their own
ITEMS = 16


def sparse_attention(
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
    *rows, depth = q.shape
    real = torch.promote_types(q.dtype, torch.float32)
    out, mean = (torch.empty(*rows, v.shape[-1], dtype=real) for _ in range(2))
    tau, support = torch.empty(rows, dtype=real), torch.empty(rows, dtype=torch.int32)
    places = _places(q.shape[2], k.shape[2], starts_q, starts_k, left, right, offset)
    items = len(places[2]) * q.shape[0] * q.shape[1]
    parallel(
        contexts, torch.Size((items, HEIGHT * k.shape[2])), 1 + depth // 8, _heads(q), _panels(k), _heads(v),
        tuple(_heads(t) for t in (out, mean, tau, support)), places, _masks(mask, q, k),
        _of_heads(alphas, alpha, q).double().numpy(), _of_heads(sinks, -torch.inf, q).numpy(), scale, softcap,
    )  # fmt: skip
    notes = torch.empty(0, dtype=torch.int32)
    return out.to(q.dtype), mean.to(q.dtype), tau, support, notes, notes.to(torch.int16)


def sparse_attention_backward(
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
    batches, heads, queries, depth = q.shape
    real = tau.dtype
    places, masks = _places(queries, k.shape[2], starts_q, starts_k, left, right, offset), _masks(mask, q, k)
    wanted = mask is not None and mask_gradient
    # batches, and heads, whose gradients go to the same entries
    batch_run = batches if wanted and masks[2][0] == 0 else 1
    head_run = heads if wanted and masks[2][1] == 0 else heads // max(k.shape[1], 1)
    runs = batches * heads // max(batch_run * head_run, 1)
    parts = max(min(ITEMS // max(runs, 1), len(places[2])), 1)
    dq, dalpha, dsink = (torch.empty(t.shape, dtype=real) for t in (q, tau, tau))
    dk, dv = (torch.zeros(parts, *t.shape, dtype=real) for t in (k, v))
    apart = parts if masks[2][2] == 0 else 1
    dmask = torch.zeros(apart, mask.numel() if wanted else 0, dtype=real)
    of_keys = (t.flatten(1, 2).numpy() for t in (dk, dv))
    results = (_heads(dq), *of_keys, _heads(dalpha), _heads(dsink), dmask.numpy())
    cost = HEIGHT * k.shape[2] * max(len(places[2]) * batch_run * head_run // parts, 1)
    parallel(
        gradients, torch.Size((runs * parts, cost)), 1 + depth // 8, tuple(_heads(t) for t in (grad, q, k, v, mean)),
        _panels(k), results, places, masks, _of_heads(alphas, alpha, q).double().numpy(),
        _of_heads(sinks, -torch.inf, q).numpy(), scale, softcap, alphas is not None, (batch_run, head_run, parts),
    )  # fmt: skip
    dk, dv, dmask = (t[0] if len(t) == 1 else t.sum(0) for t in (dk, dv, dmask))
    shape = mask.shape if wanted else (0,)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dalpha, dsink, dmask.reshape(shape)


def _heads(x: Tensor) -> np.ndarray:
    """Tensors (B, H, ...) as contiguous arrays (B H, ...), at least in float32."""
    return wide(x).detach().contiguous().flatten(0, 1).numpy()


def _panels(k: Tensor) -> np.ndarray:
    """Keys in panels of the lanes of a vector, each channel of a panel after the other: (B G, panels, D, lanes)."""
    rows = wide(k).detach().flatten(0, 1)
    lanes = BYTES // rows.dtype.itemsize
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % lanes))
    return rows.unflatten(1, (rows.shape[1] // lanes, lanes)).mT.contiguous().numpy()


def _of_heads(values: Tensor | None, otherwise: float, q: Tensor) -> Tensor:
    """A number for each head, of the precision of the arithmetic."""
    real = torch.promote_types(q.dtype, torch.float32)
    if values is None:
        return torch.full((q.shape[1],), otherwise, dtype=torch.float64 if otherwise > 0 else real)
    return values.detach().to(real).contiguous()


def _masks(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """What a mask keeps, and what it adds, flat, one of them empty; and the strides by which all scores read it."""
    real = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        mask, strides = torch.empty(0, dtype=torch.bool), (0, 0, 0, 0)
    else:
        mask = mask.detach().contiguous()
        strides = mask.expand(*q.shape[:3], k.shape[2]).stride()
    keep = mask if mask.dtype == torch.bool else mask.new_empty(0, dtype=torch.bool)
    bias = mask.to(real) if mask.dtype != torch.bool else mask.new_empty(0, dtype=real)
    return keep.reshape(-1).numpy(), bias.reshape(-1).numpy(), strides


def _places(
    queries: int, keys: int, starts_q: Tensor | None, starts_k: Tensor | None, left: int, right: int, offset: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first key that each query sees and the one after the last; and the same for blocks of queries.

    The keys that `geometry.allowed` allows are neighbours.
    """
    i = torch.arange(queries)
    begin, end = torch.zeros_like(i), torch.full_like(i, keys)
    if starts_q is not None and starts_k is not None:
        of = torch.bucketize(i, starts_q[1:], right=True)
        inside, of = of < len(starts_q) - 1, of.clamp(max=len(starts_q) - 2)
        begin, end = starts_k[of].long(), torch.where(inside, starts_k[of + 1].long(), 0)
        i = i - starts_q[of] + begin
    low = torch.maximum(begin, i + offset - left) if left >= 0 else begin
    high = torch.minimum(end, i + offset + right + 1) if right >= 0 else end
    high = torch.maximum(high, low)
    seen = high > low
    short = -queries % HEIGHT
    first = torch.nn.functional.pad(torch.where(seen, low, keys), (0, short), value=keys).unflatten(0, (-1, HEIGHT)).amin(1)
    last = torch.nn.functional.pad(torch.where(seen, high, 0), (0, short)).unflatten(0, (-1, HEIGHT)).amax(1)
    return low.numpy(), high.numpy(), first.numpy(), last.numpy()
