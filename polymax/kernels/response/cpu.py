"""The response of weights and mean in Numba, instance by instance; and the mean itself."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import REALS, run
from polymax.backend.numba_math import inline, kernel
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.kernels.active_set.numba_factor import dot, grow, solve_above
from polymax.kernels.active_set.tolerances import DEPENDENT

# zeros whose type passes the dtype of overlaps to a kernel
_COUNTS = {torch.int16: np.int16(0), torch.int32: np.int32(0), torch.float64: np.float64(0)}


def response(
    places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor | None, d: int
) -> tuple[Tensor, Tensor]:
    count, k, parts = places.shape
    out, q = g.new_empty(count, d), probs.new_empty(count, k)
    lists, gram, weights, along = places.int().contiguous(), overlaps.contiguous(), probs.contiguous(), g.contiguous()
    if gram.dtype not in _COUNTS:
        gram = gram.double()
    own = q if h is None else h.contiguous()
    run(
        _response, count, 4 * k * (k + parts), count, k, parts, g.shape[1], d, lists.data_ptr(), gram.data_ptr(),
        weights.data_ptr(), along.data_ptr(), own.data_ptr(), out.data_ptr(), q.data_ptr(), _COUNTS[gram.dtype],
        REALS[g.dtype], h is not None,
    )  # fmt: skip
    return out, q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    mu = torch.empty(len(probs), d, dtype=dtype, device="cpu")
    arrays = tuple(memory(t.contiguous()) for t in (places, probs, mu))
    run(_mixture, len(probs), places.shape[1:].numel() + d, *arrays)
    return mu


@lean_kernel
def _response(
    start, stop, size, room, parts, moved, d, places_at, overlaps_at, probs_at, g_at, h_at, out_at, q_at, whole, real,
    weighted,
):  # fmt: skip
    places, overlaps = (
        array_at(places_at, (size, room, parts), np.int32(0)),
        array_at(overlaps_at, (size, room, room), whole),
    )
    probs, q, h = (
        array_at(probs_at, (size, room), 0.0),
        array_at(q_at, (size, room), 0.0),
        array_at(h_at, (size, room), 0.0),
    )
    g, out = array_at(g_at, (size, moved), real), array_at(out_at, (size, d), real)
    memory = taken_as_is(8 * (2 * room * room + 6 * room + d))
    gram, factor = array_at(memory, (room, room), 0.0), array_at(memory + 8 * room * room, (room, room), 0.0)
    rest = memory + 16 * room * room
    half, b, x = (
        array_at(rest, (3, room), 0.0),
        array_at(rest + 24 * room, (room,), 0.0),
        array_at(rest + 32 * room, (room,), 0.0),
    )
    kept, total = array_at(rest + 40 * room, (room,), np.int64(0)), array_at(rest + 48 * room, (d,), 0.0)
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
    give_back(memory)


@kernel
def _mixture(start, stop, places, probs, mu):
    total = np.empty(mu.shape[1])
    for i in range(start, stop):
        _spread(places[i], probs[i], total, mu[i])


@inline
def _gathered(parts, x):
    """Return the sum of x over parts, up to the first -1."""
    total = 0.0
    for u in range(parts.size):
        if parts[u] < 0:
            break
        if parts[u] < x.size:
            total += x[parts[u]]
    return total


@inline
def _spread(places, weights, total, out):
    """Write the weighted sum of structures, added up in float64."""
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
