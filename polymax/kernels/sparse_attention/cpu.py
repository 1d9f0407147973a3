"""Sparse attention in blocks of queries, each with all keys that it sees: memory grows with the length, not its square.

The forward and the backward pass both compute the scores by one matrix product in registers. All other steps touch only
the few keys of a row that have weight: see cpu_scores.py.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as _pad

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.widen import wide
from polymax.kernels.sparse_attention.cpu_contexts import contexts
from polymax.kernels.sparse_attention.cpu_gradients import gradients
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT
from polymax.kernels.sparse_attention.dropout import threshold
from polymax.kernels.sparse_attention.numba_vectors import BYTES
from polymax.kernels.sparse_attention.options import Options, of_backward

# upper limit of the work items of the backward pass: if there are fewer heads, the queries are split into parts, each
# with its own gradients of keys
ITEMS = 16


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    options = Options(*given)
    real, rows = wide(q).dtype, q.shape[:-1]
    keys, values = _vectors(k, real, filled=True), _vectors(v, real)
    out, mean = (torch.empty(*rows, values.shape[-1], dtype=real, device="cpu") for _ in range(2))
    tau, support = torch.empty(2, *rows, dtype=real, device="cpu"), torch.empty(rows, dtype=torch.int32, device="cpu")
    places = _places(q.shape[2], k.shape[2], options)
    items = len(places[2]) * q.shape[0] * q.shape[1]
    parallel(
        contexts, torch.Size((items, HEIGHT * k.shape[2])), 1 + q.shape[3] // 8, _vectors(q, real), _panels(keys),
        values, (_heads(out), _heads(mean), memory(tau.flatten(1, 2)), _heads(support)), places,
        _masks(options.mask, q, k), _alphas(options, q), _sinks(options.sinks, q), options.scale, options.softcap,
        _finite(values), _drop(options),
    )  # fmt: skip
    out, mean = (t[..., : v.shape[-1]].to(q.dtype).contiguous() for t in (out, mean))
    notes = torch.empty(0, dtype=torch.int32, device="cpu")
    return out, mean, tau, support, notes, notes.to(torch.int16)


def sparse_attention_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    (q, k, v, mean, *_), mask_gradient, options = of_backward(given)
    mask = options.mask
    batches, heads, queries, depth = q.shape
    places, masks = _places(queries, k.shape[2], options), _masks(mask, q, k)
    wanted = mask is not None and mask_gradient
    # numbers of batches and of heads whose gradients go to the same entries
    batch_run = batches if wanted and masks[2][0] == 0 else 1
    head_run = heads if wanted and masks[2][1] == 0 else heads // max(k.shape[1], 1)
    runs = batches * heads // max(batch_run * head_run, 1)
    parts = max(min(ITEMS // max(runs, 1), len(places[2])), 1)
    real = wide(q).dtype
    rows, keys = [_vectors(t, real) for t in (grad, q, mean)], [_vectors(t, real, filled=True) for t in (k, v)]
    dq, dalpha, dsink = (
        torch.empty(*q.shape[:3], *more, dtype=real, device="cpu") for more in (rows[1].shape[2:], (), ())
    )
    dk, dv = (np.zeros((parts, *t.shape), t.dtype) for t in keys)
    dmask = np.zeros((parts if masks[2][2] == 0 else 1, mask.numel() if wanted else 0), dk.dtype)
    cost = HEIGHT * k.shape[2] * max(len(places[2]) * batch_run * head_run // parts, 1)
    parallel(
        gradients, torch.Size((runs * parts, cost)), 1 + depth // 8, (*rows, *keys), _panels(keys[0]),
        (_heads(dq), dk, dv, _heads(dalpha), _heads(dsink), dmask), places, masks, _alphas(options, q),
        _sinks(options.sinks, q), options.scale, options.softcap, options.alphas is not None,
        all(_finite(t) for t in (*rows[:2], *keys)), (batch_run, head_run, parts), _drop(options),
    )  # fmt: skip
    of_k, of_v, of_mask = (torch.from_numpy(t[0] if len(t) == 1 else t.sum(0)) for t in (dk, dv, dmask))
    of_q, of_k, of_v = (
        d.reshape(*t.shape[:2], *d.shape[-2:])[..., : t.shape[2], : t.shape[3]].to(t.dtype).contiguous()
        for d, t in ((dq, q), (of_k, k), (of_v, v))
    )
    return of_q, of_k, of_v, dalpha, dsink, of_mask.reshape(mask.shape if wanted else (0,))


# NumPy prepares the arrays: after a call of torch, its threads would spin for more work while our threads run


def _vectors(x: Tensor, real: torch.dtype, filled: bool = False) -> np.ndarray:
    """Return rows (B H, n, d) in the precision of the arithmetic, with channels padded by zeros to whole vectors.

    If `filled`, the number of rows is also padded to a multiple of the lanes of a vector.
    """
    found = memory(x.to(real).contiguous().flatten(0, 1))
    lanes = BYTES // real.itemsize
    more = -x.shape[2] % lanes if filled else 0, -x.shape[3] % lanes
    return np.pad(found, ((0, 0), (0, more[0]), (0, more[1]))) if any(more) else found


def _heads(x: Tensor) -> np.ndarray:
    """Return tensors (B, H, ...) as contiguous arrays (B H, ...)."""
    return memory(x.flatten(0, 1))


def _panels(keys: np.ndarray) -> np.ndarray:
    """Return keys in panels of the lanes of a vector, the channels of a panel one after the other: (B G, panels, D,
    lanes).
    """
    heads, n, depth = keys.shape
    lanes = BYTES // keys.itemsize
    return np.ascontiguousarray(keys.reshape(heads, n // lanes, lanes, depth).swapaxes(2, 3))


def _finite(x: np.ndarray) -> bool:
    """Return True if 0 times every entry is 0, which matrix products need."""
    # a sum is finite only if all terms are, and needs no memory
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.sum()))


def _alphas(options: Options, q: Tensor) -> np.ndarray:
    alphas = options.alphas
    return np.full(q.shape[1], options.alpha) if alphas is None else memory(alphas.double().contiguous())


def _drop(options: Options) -> tuple[int, int, float]:
    """Return the seed, the number below which a hash drops a weight, and the factor of the weights that are kept."""
    if options.seed is None:
        return 0, 0, 1.0
    return int(options.seed), threshold(options.dropout), 1 / (1 - options.dropout)


def _sinks(sinks: Tensor | None, q: Tensor) -> np.ndarray:
    found = torch.full((q.shape[1],), -torch.inf, device="cpu") if sinks is None else sinks.detach()
    return memory(found.to(wide(q).dtype).contiguous())


def _masks(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """Return the flat bool mask, the flat float mask (the one not given is empty), and their strides over (B, H, L,
    S).
    """
    real = wide(q).dtype
    keep, bias, strides = (
        torch.zeros(0, dtype=torch.bool, device="cpu"),
        torch.zeros(0, dtype=real, device="cpu"),
        (0, 0, 0, 0),
    )
    if mask is not None:
        mask = mask.detach().contiguous()
        strides = mask.expand(*q.shape[:3], k.shape[2]).stride()
        keep, bias = (mask, bias) if mask.dtype == torch.bool else (keep, mask.to(real))
    return memory(keep.flatten()), memory(bias.flatten()), strides


def _places(queries: int, keys: int, options: Options) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the first key that each query sees and the end of its keys, then both bounds for each block of queries.

    The keys that `geometry.allowed` allows for a query are contiguous.
    """
    starts_q, starts_k = options.starts_q, options.starts_k
    left, right, offset = options.left, options.right, options.offset
    i = torch.arange(queries, device="cpu")
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
    return memory(low), memory(high), memory(first), memory(last)
