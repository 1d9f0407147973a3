"""Group lasso on the simplex for Numba: Newton's steps for the threshold, guarded by bisection, in float64.

Groups lie one after the other in a copy of the row, so that each is a sum over neighbours.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import REALS, beside, plain, run
from polymax.backend.numba_math import add, inline, kernel, rows_at

# PATIENCE: steps after which every second step halves the bracket
# MOST: most steps
PATIENCE, MOST = 12, 200


def grouped(x: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int) -> Tensor:
    scores, n = plain(x), x.shape[-1]
    out = torch.empty_like(scores)
    strengths = beside(strength.double(), x.shape[:-1])
    run(
        _grouped, x.numel() // max(n, 1), 16 * n, n, scores.data_ptr(), out.data_ptr(), strengths.data_ptr(),
        REALS[out.dtype], strengths.numel() > 1, *_groups(entries, first), lone,
    )  # fmt: skip
    return out


def grouped_backward(
    x: Tensor, y: Tensor, v: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int
) -> Tensor:
    scores, point, direction, n = plain(x), plain(y), plain(v), y.shape[-1]
    out = torch.empty_like(point)
    strengths = beside(strength.double(), y.shape[:-1])
    run(
        _grouped_backward, y.numel() // max(n, 1), 4 * n, n, scores.data_ptr(), point.data_ptr(), direction.data_ptr(),
        out.data_ptr(), strengths.data_ptr(), REALS[scores.dtype], REALS[point.dtype], REALS[direction.dtype],
        strengths.numel() > 1, *_groups(entries, first), lone,
    )  # fmt: skip
    return out if out.dtype == v.dtype else out.to(v.dtype)


def _groups(entries: Tensor, first: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return tuple(memory(t[(0,) * (t.dim() - 1)].contiguous()) for t in (entries, first))


@kernel
def _grouped(start, stop, n, x_at, y_at, strengths_at, real, many, entries, first, lone):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    strengths = rows_at(strengths_at, 1, stop, 0.0)[0]
    groups = first.size - 1
    z, price = np.empty(n), np.empty(groups)
    for i in range(start, stop):
        strength = strengths[i if many else 0]
        top, bad = -np.inf, not strength >= 0
        for j in range(n):
            bad |= not x[i, j] < np.inf
            top = max(top, np.float64(x[i, j]))
        if bad or top == -np.inf:
            for j in range(n):
                y[i, j] = np.nan if bad else 0
            continue
        highest = _prices(x[i], strength, entries, first, lone, price)
        for k in range(n):
            z[k] = np.float64(x[i, entries[k]]) - top
        tau, total = _threshold(z, price, first, -1 - highest)
        for g in range(groups):
            _, _, share = _sums(z[first[g] : first[g + 1]], tau, price[g])
            for k in range(first[g], first[g + 1]):
                # for large prices weights are small differences with a common relative error, so normalise them
                y[i, entries[k]] = (z[k] - tau) * share / total if z[k] > tau else 0.0


@kernel
def _grouped_backward(
    start, stop, n, x_at, y_at, v_at, out_at, strengths_at, real_x, real, real_v, many, entries, first, lone
):  # fmt: skip
    x, y = rows_at(x_at, stop, n, real_x), rows_at(y_at, stop, n, real)
    v, out = rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real)
    strengths = rows_at(strengths_at, 1, stop, 0.0)[0]
    groups = first.size - 1
    price, rate, pulled, ones = np.empty(groups), np.empty(groups), np.empty(groups), np.empty(groups)
    for i in range(start, stop):
        _prices(x[i], strengths[i if many else 0], entries, first, lone, price)
        whole = total = 0.0
        for g in range(groups):
            squares = count = flat = reach = weight = 0.0
            for k in range(first[g], first[g + 1]):
                p, d = np.float64(y[i, entries[k]]), np.float64(v[i, entries[k]])
                # a NaN is counted, and fills its row
                if p != 0:
                    squares = add(squares, p * p)
                    count += 1
                    flat = add(flat, d)
                    reach = add(reach, p * d)
                    weight = add(weight, p)
            norm = np.sqrt(squares)
            rate[g] = price[g] / (norm + price[g]) if norm != 0 and price[g] > 0 else 0.0
            # an entry of weight w contributes pulled[g] w by <u, v>, and ones[g] w by <u, 1>
            pulled[g] = rate[g] * reach / squares if squares != 0 else 0.0
            ones[g] = rate[g] * weight / squares if squares != 0 else 0.0
            total += (1 - rate[g]) * flat + pulled[g] * weight
            whole += (1 - rate[g]) * count + ones[g] * weight
        shift = total / whole if whole != 0 else 0.0
        for g in range(groups):
            for k in range(first[g], first[g + 1]):
                j = entries[k]
                p = np.float64(y[i, j])
                out[i, j] = (1 - rate[g]) * (v[i, j] - shift) + p * (pulled[g] - shift * ones[g]) if p != 0 else 0.0


@inline
def _prices(x, strength, entries, first, lone, price):
    """Write the price of each group, and return the largest."""
    highest = 0.0
    for g in range(price.size):
        size = 0
        if g < price.size - lone:
            for k in range(first[g], first[g + 1]):
                size += x[entries[k]] != -np.inf
        price[g] = strength * np.sqrt(np.float64(size)) if size > 0 else 0.0
        highest = max(highest, price[g])
    return highest


@inline
def _sums(z, tau, price):
    """Return the sum of a group's weights at a threshold, the rate at which it falls, and the remaining share of q."""
    squares = total = count = 0.0
    for k in range(z.size):
        q = z[k] - tau if z[k] > tau else 0.0
        squares = add(squares, q * q)
        total = add(total, q)
        count = add(count, 1.0 if z[k] > tau else 0.0)
    norm = np.sqrt(squares)
    if not norm > price:
        return 0.0, 0.0, 0.0
    share = 1 - price / norm
    # along -1, q (1 - c / norm) falls by (1 - c / norm) count + c sum(q)^2 / norm^3
    return total * share, share * count + price * (total / norm) * (total / norm) / norm, share


@inline
def _threshold(z, price, first, below):
    """Return the threshold, and the sum of weights at it."""
    above = 0.0
    tau = below / 2
    iteration = 0
    while True:
        value = slope = 0.0
        for g in range(price.size):
            weight, fall, _ = _sums(z[first[g] : first[g + 1]], tau, price[g])
            value += weight
            slope += fall
        if value > 1:
            below = tau
        else:
            above = tau
        guess = (below + above) / 2
        if slope > 0 and (iteration < PATIENCE or iteration % 2 == 0):
            newton = tau + (value - 1) / slope
            if abs(newton - tau) <= 1e-15 * (1 + abs(tau)):
                return tau, value
            if below < newton < above:
                guess = newton
        iteration += 1
        if not below < guess < above or iteration == MOST:
            return tau, value
        tau = guess
