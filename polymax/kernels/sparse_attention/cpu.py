"""Sparse attention in blocks of queries, each with all keys that it sees: memory grows with the length, not its square.

Forward, and again backward, scores are computed by one product of matrices in registers. Everything else is done for
the few keys of a row that have weight: see cpu_scores.py.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as _pad

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
    real, rows = wide(q).dtype, q.shape[:-1]
    of_q, of_v = _vectors(q, real), _vectors(v, real)
    out, mean = (torch.empty(*rows, of_v.shape[-1], dtype=real) for _ in range(2))
    tau, support = torch.empty(rows, dtype=real), torch.empty(rows, dtype=torch.int32)
    places = _places(q.shape[2], k.shape[2], starts_q, starts_k, left, right, offset)
    items = len(places[2]) * q.shape[0] * q.shape[1]
    parallel(
        contexts, torch.Size((items, HEIGHT * k.shape[2])), 1 + q.shape[3] // 8, _heads(of_q), _panels(k, real),
        _heads(of_v), tuple(_heads(t) for t in (out, mean, tau, support)), places, _masks(mask, q, k),
        _alphas(alpha, alphas, q), _sinks(sinks, q), scale, softcap, _finite(v),
    )  # fmt: skip
    out, mean = (t[..., : v.shape[-1]].to(q.dtype).contiguous() for t in (out, mean))
    notes = torch.empty(0, dtype=torch.int32)
    return out, mean, tau, support, notes, notes.to(torch.int16)


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
    places, masks = _places(queries, k.shape[2], starts_q, starts_k, left, right, offset), _masks(mask, q, k)
    wanted = mask is not None and mask_gradient
    # batches, and heads, whose gradients go to the same entries
    batch_run = batches if wanted and masks[2][0] == 0 else 1
    head_run = heads if wanted and masks[2][1] == 0 else heads // max(k.shape[1], 1)
    runs = batches * heads // max(batch_run * head_run, 1)
    parts = max(min(ITEMS // max(runs, 1), len(places[2])), 1)
    real = wide(q).dtype
    by_query, by_key = (_vectors(t, real) for t in (grad, q, mean)), (_vectors(t, real, keys=True) for t in (k, v))
    inputs = *by_query, *by_key
    dq, dalpha, dsink = (torch.empty(t.shape, dtype=real) for t in (inputs[1], tau, tau))
    dk, dv = (torch.zeros(parts, *t.shape, dtype=real) for t in inputs[3:])
    dmask = torch.zeros(parts if masks[2][2] == 0 else 1, mask.numel() if wanted else 0, dtype=real)
    of_keys = (t.flatten(1, 2).numpy() for t in (dk, dv))
    results = (_heads(dq), *of_keys, _heads(dalpha), _heads(dsink), dmask.numpy())
    cost = HEIGHT * k.shape[2] * max(len(places[2]) * batch_run * head_run // parts, 1)
    parallel(
        gradients, torch.Size((runs * parts, cost)), 1 + depth // 8, tuple(_heads(t) for t in inputs), _panels(k, real),
        results, places, masks, _alphas(alpha, alphas, q), _sinks(sinks, q), scale, softcap, alphas is not None,
        all(_finite(t) for t in (grad, q, k, v)), (batch_run, head_run, parts),
    )  # fmt: skip
    dk, dv, dmask = (t[0] if len(t) == 1 else t.sum(0) for t in (dk, dv, dmask))
    dq, dk, dv = (d[..., : t.shape[-2], : t.shape[-1]].to(t.dtype).contiguous() for d, t in ((dq, q), (dk, k), (dv, v)))
    return dq, dk, dv, dalpha, dsink, dmask.reshape(mask.shape if wanted else (0,))


def _vectors(x: Tensor, real: torch.dtype, keys: bool = False) -> Tensor:
    """Rows in the precision of the arithmetic, with channels, and keys, filled up with zeros to whole vectors."""
    x, lanes = x.detach().to(real), BYTES // real.itemsize
    return _pad(x, (0, -x.shape[-1] % lanes, 0, -x.shape[-2] % lanes if keys else 0)).contiguous()


def _heads(x: Tensor) -> np.ndarray:
    """Contiguous tensors (B, H, ...) as arrays (B H, ...)."""
    return x.flatten(0, 1).numpy()


def _panels(k: Tensor, real: torch.dtype) -> np.ndarray:
    """Keys in panels of the lanes of a vector, each channel of a panel after the other: (B G, panels, D, lanes)."""
    rows, lanes = _vectors(k, real, keys=True).flatten(0, 1), BYTES // real.itemsize
    return rows.unflatten(1, (rows.shape[1] // lanes, lanes)).mT.contiguous().numpy()


def _finite(x: Tensor) -> bool:
    """True if 0 times any entry is 0: products of matrices need that."""
    # a sum is finite only if all terms are, and needs no memory
    return bool(torch.isfinite(x.sum(dtype=torch.float64)))


def _alphas(alpha: float, alphas: Tensor | None, q: Tensor) -> np.ndarray:
    return np.full(q.shape[1], alpha) if alphas is None else alphas.detach().double().contiguous().numpy()


def _sinks(sinks: Tensor | None, q: Tensor) -> np.ndarray:
    found = torch.full((q.shape[1],), -torch.inf) if sinks is None else sinks.detach()
    return found.to(wide(q).dtype).contiguous().numpy()


def _masks(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """What a mask keeps, and what it adds, flat, one of them empty; and the strides by which all scores read it."""
    real = wide(q).dtype
    keep, bias, strides = torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=real), (0, 0, 0, 0)
    if mask is not None:
        mask = mask.detach().contiguous()
        strides = mask.expand(*q.shape[:3], k.shape[2]).stride()
        keep, bias = (mask, bias) if mask.dtype == torch.bool else (keep, mask.to(real))
    return keep.flatten().numpy(), bias.flatten().numpy(), strides


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
    first = _pad(torch.where(seen, low, keys), (0, short), value=keys).unflatten(0, (-1, HEIGHT)).amin(1)
    last = _pad(torch.where(seen, high, 0), (0, short)).unflatten(0, (-1, HEIGHT)).amax(1)
    return low.numpy(), high.numpy(), first.numpy(), last.numpy()
