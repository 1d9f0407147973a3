"""The response of weights and mean in Numba, one instance after the other; and the mean itself."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.active_set.numba_factor import dot, grow, solve_above
from polymax.kernels.active_set.tolerances import DEPENDENT
from polymax.kernels.cpu_rows import run
from polymax.kernels.numba_math import inline, kernel


def response(
    places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor | None, d: int
) -> tuple[Tensor, Tensor]:
    count, k, parts = places.shape
    out, q = (
        torch.empty(count, d, dtype=g.dtype, device="cpu"),
        torch.empty(count, k, dtype=torch.float64, device="cpu"),
    )
    arrays = tuple(t.contiguous().numpy() for t in (places, overlaps, probs, g, q if h is None else h, out, q))
    run(_response, count, 4 * k * (k + parts), *arrays, h is not None)
    return out, q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    mu = torch.empty(len(probs), d, dtype=dtype, device="cpu")
    arrays = tuple(t.contiguous().numpy() for t in (places, probs, mu))
    run(_mixture, len(probs), places.shape[1:].numel() + d, *arrays)
    return mu


@kernel
def _response(start, stop, places, overlaps, probs, g, h, out, q, weighted):
    room = probs.shape[1]
    gram, factor, half = np.empty((room, room)), np.empty((room, room)), np.empty((3, room))
    b, x, kept = np.empty(room), np.empty(room), np.empty(room, np.int64)
    total = np.empty(out.shape[1])
    for i in range(start, stop):
        count = np.int64(0)
        for k in range(room):
            if not (probs[i, k] > 0 or overlaps[i, k, k] > 0):
                break
            b[count] = _gathered(places[i, k], g[i])
            if weighted:
                b[count] += h[i, k]
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
    """The sum of x over parts, 0 for those after its last."""
    total = 0.0
    for u in range(parts.size):
        if parts[u] < 0:
            break
        if parts[u] < x.size:
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
