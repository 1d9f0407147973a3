"""The response of weights and mean in Numba, one instance after the other; and the mean itself."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.active_set.numba_factor import dot, grow, solve_above
from polymax.kernels.active_set.tolerances import DEPENDENT
from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline, kernel


def response(places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    out, q = torch.empty(g.shape, dtype=g.dtype), torch.empty(h.shape, dtype=h.dtype)
    arrays = tuple(t.contiguous().numpy() for t in (places, overlaps, probs, g, h, out, q))
    count, k, parts = places.shape
    parallel(_response, torch.Size((count, k * (k + parts))), 4, *arrays)
    return out, q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    mu = torch.empty(len(probs), d, dtype=dtype)
    arrays = tuple(t.contiguous().numpy() for t in (places, probs, mu))
    parallel(_mixture, torch.Size((len(probs), places.shape[1:].numel() + d)), 1, *arrays)
    return mu


@kernel
def _response(start, stop, places, overlaps, probs, g, h, out, q):
    room = probs.shape[1]
    gram, factor, half = np.empty((room, room)), np.empty((room, room)), np.empty((3, room))
    b, x, kept = np.empty(room), np.empty(room), np.empty(room, np.int64)
    total = np.empty(g.shape[1])
    for i in range(start, stop):
        count = np.int64(0)
        for k in range(room):
            if not (probs[i, k] > 0 or overlaps[i, k, k] > 0):
                break
            b[count] = h[i, k] + _gathered(places[i, k], g[i])
            kept[count] = k
            for c in range(count + 1):
                gram[count, c] = overlaps[i, k, kept[c]]
            if grow(count, gram, b, factor, half) > DEPENDENT * (gram[count, count] + 1):
                count += 1
        share = -dot(half[1], half[0], count) / dot(half[1], half[1], count) if count > 0 else 0.0
        for c in range(count):
            x[c] = half[0, c] + share * half[1, c]
        solve_above(count, factor, half, x)
        for k in range(room):
            q[i, k] = np.nan if np.isnan(probs[i, k]) else 0.0
        for c in range(count):
            q[i, kept[c]] = x[c]
        _spread(places[i], q[i], total, out[i])


@kernel
def _mixture(start, stop, places, probs, mu):
    total = np.empty(mu.shape[1])
    for i in range(start, stop):
        _spread(places[i], probs[i], total, mu[i])


@inline
def _gathered(parts, x):
    """The sum of x over parts."""
    total = 0.0
    for u in range(parts.size):
        if parts[u] < 0:
            break
        total += x[parts[u]]
    return total


@inline
def _spread(places, weights, total, out):
    """The weighted sum of structures, added up in float64."""
    for u in range(total.size):
        total[u] = 0.0
    for k in range(weights.size):
        if weights[k] != 0:
            for u in places[k]:
                if u < 0:
                    break
                total[u] += weights[k]
    for u in range(out.size):
        out[u] = total[u]
