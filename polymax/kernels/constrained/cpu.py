"""The nearest point that satisfies linear constraints, in Numba: instance by instance.

The dual function of the prices tau is convex, once differentiable and quadratic between kinks. Each round first sets
one price after the other to its best value, which no kink can stop, then takes Newton's step for all prices on the free
variables: if these are the right ones, the step is exact.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.constrained.numba_rows import best_step, gradients, part, sum_at

# largest violation of a row at the end, relative to the largest score
TOLERANCE = 1e-12
# a round with a smaller relative gain counts as idle, and so many idle rounds end the search
GAIN = 0.9
IDLE = 4
# violation that idle rounds may leave, in units of the goal
NEARLY = 1e3
# FLAT: larger scores are approached from scaled-down scores
# ROUGH: violation allowed at the scaled-down scores
FLAT, ROUGH = 2.0, 1e-3
# Newton's systems are singular if rows depend on each other: add this multiple of the identity, times the violation
DAMPING = 1e-3


def constrained(
    x: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, columns: Tensor, signs: Tensor, offset: Tensor,
    least: Tensor, most: Tensor, start: Tensor, rounds: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    mu, tau = (
        torch.empty(x.shape, dtype=torch.float64, device="cpu"),
        torch.empty(start.shape, dtype=torch.float64, device="cpu"),
    )
    violation, done = (
        torch.empty(len(x), dtype=torch.float64, device="cpu"),
        torch.zeros(len(x), dtype=torch.long, device="cpu"),
    )
    tensors = x, weight, lower, upper, columns, signs, offset, least, most, start, mu, tau, violation, done
    arrays = tuple(memory(t.contiguous()) for t in tensors)
    work = 100 * int(columns.shape[1] * columns.shape[2]) + x.shape[1]
    parallel(_constrained, torch.Size((len(x), work)), 4, *arrays, rounds)
    return mu, tau, violation, done


def constrained_response(
    free: Tensor, tight: Tensor, weight: Tensor, columns: Tensor, signs: Tensor, g: Tensor
) -> Tensor:
    out = torch.empty(g.shape, dtype=torch.float64, device="cpu")
    arrays = tuple(memory(t.contiguous()) for t in (free, tight, weight, columns, signs, g, out))
    work = 50 * int(columns.shape[1] * columns.shape[2]) + g.shape[1]
    parallel(_response, torch.Size((len(g), work)), 4, *arrays)
    return out


@kernel
def _constrained(
    first, last, x, weight, lower, upper, columns, signs, offset, least, most, start, mu, tau, violation, done, rounds
):
    n, count = x.shape[1], columns.shape[1]
    t, trial = np.empty(n), np.empty(n)
    price, b, y, diagonal, work = (
        np.empty(count),
        np.empty(count),
        np.empty(count),
        np.empty(count),
        np.empty((4, count)),
    )
    room = np.zeros(n)
    bounds, column, sign = np.empty(count + 1, np.int64), np.empty(columns[0].size, np.int64), np.empty(columns[0].size)
    row = np.empty(count, np.int64)
    low_price, high_price = np.empty(count), np.empty(count)
    for i in range(first, last):
        g = i // (len(x) // len(columns))
        c, s, w, low, high = columns[g], signs[g], weight[i], lower[i], upper[i]
        top = 0.0
        for v in range(n):
            if low[v] < high[v]:
                top = max(top, abs(x[i, v]))
        cold = True
        for r in range(count):
            cold = cold and start[i, r] == 0.0
        # from scaled-down scores to the full ones: prices double with them, and few variables change sides
        scale = 1.0
        while cold and scale * top > FLAT:
            scale /= 2
        tau[i] = start[i] * scale
        while True:
            for v in range(n):
                t[v] = scale * x[i, v]
            for r in range(count):
                low_price[r], high_price[r] = scale * least[i, r], scale * most[i, r]
                tau[i, r] = min(max(tau[i, r], low_price[r]), high_price[r])
                _raise(c[r], s[r], tau[i, r], t)
            goal = TOLERANCE * (1 + top) if scale == 1.0 else ROUGH
            done[i] += _descend(
                c,
                s,
                offset[g],
                t,
                w,
                low,
                high,
                tau[i],
                low_price,
                high_price,
                goal,
                rounds if scale == 1.0 else 10,
                (trial, price, b, y, diagonal, work, room, bounds, column, sign, row),
            )
            if scale == 1.0:
                break
            scale *= 2
            for r in range(count):
                tau[i, r] *= 2
        # recompute, without the rounding of many steps
        for v in range(n):
            t[v] = x[i, v]
        for r in range(count):
            _raise(c[r], s[r], tau[i, r], t)
        for v in range(n):
            mu[i, v] = part(t[v], w[v], low[v], high[v])
        violation[i] = _missed(c, s, offset[g], t, w, low, high, tau[i], least[i], most[i], b)


@kernel
def _descend(c, s, offset, t, w, low, high, tau, least, most, goal, rounds, space):
    """Run rounds on one instance, in place: prices tau, and scores t less prices; return their number."""
    count = c.shape[0]
    trial, price, b, y, diagonal, work, room, bounds, column, sign, row = space
    before, idle = np.inf, 0
    for turn in range(rounds):
        for r in range(count):
            room_below, room_above = least[r] - tau[r], most[r] - tau[r]
            step = best_step(c[r], s[r], offset[r], t, w, low, high, room_below, room_above)
            if step != 0.0:
                # exactly at its bound
                new = tau[r] + step
                new = least[r] if step == room_below else most[r] if step == room_above else new
                tau[r] = min(max(new, least[r]), most[r])
                _raise(c[r], s[r], step, t)
        miss = _missed(c, s, offset, t, w, low, high, tau, least, most, b)
        if miss <= goal:
            return turn + 1
        # rows whose price may move, on the free variables
        total = held = 0
        bounds[0] = 0
        for r in range(count):
            if b[r] != 0.0 or least[r] < tau[r] < most[r]:
                diagonal[held] = 0.0
                for k in range(c.shape[1]):
                    v = c[r, k]
                    if v < 0:
                        break
                    if low[v] < t[v] / w[v] < high[v]:
                        column[total], sign[total] = v, s[r, k]
                        diagonal[held] += 1 / w[v]
                        total += 1
                row[held] = r
                b[held] = b[r]
                held += 1
                bounds[held] = total
        gradients(held, bounds, column, sign, diagonal, w, DAMPING * min(miss, 1.0), b, y, work, room)
        slope = total = 0.0
        longest = np.inf
        trial[:] = 0.0
        for k in range(held):
            r = row[k]
            _raise(c[r], s[r], -y[k], trial)
            slope += offset[r] * y[k]
            total = (most[r] if y[k] > 0 else least[r]) - tau[r]
            if y[k] != 0.0 and total != 0.0:
                longest = min(longest, total / y[k])
        share = _along(t, trial, w, low, high, slope)
        value = _dual(c, offset, t, w, low, high, tau)
        # try the full step, which is exact in the end; the step to the least value; the step to the first end of a
        # price
        for length in (1.0, share, min(share, longest)):
            price[:] = tau
            trial[:] = t
            for k in range(held):
                r = row[k]
                price[r] = min(max(price[r] + length * y[k], least[r]), most[r])
                _raise(c[r], s[r], price[r] - tau[r], trial)
            new = _missed(c, s, offset, trial, w, low, high, price, least, most, b)
            reached = _dual(c, offset, trial, w, low, high, price)
            slack = 1e-13 * (1 + abs(value))
            if reached < value - slack or (new < GAIN * miss and reached <= value + slack):
                t[:] = trial
                tau[:] = price
                miss = new
                break
        if miss <= goal:
            return turn + 1
        idle = idle + 1 if miss > GAIN * before else 0
        before = min(before, miss)
        if idle >= IDLE and miss < NEARLY * goal:
            return turn + 1
    return rounds


@inline
def _raise(columns, signs, step, t):
    """Subtract a price from the scores of a row's variables."""
    for k in range(columns.size):
        v = columns[k]
        if v < 0:
            break
        t[v] -= signs[k] * step


@inline
def _missed(c, s, offset, t, w, low, high, tau, least, most, b):
    """Write b, the amount by which each row is exceeded; return the largest |b|.

    b is 0 for a row whose price is at an end of its range, and would have to move beyond this end.
    """
    worst = 0.0
    for r in range(c.shape[0]):
        total, _ = sum_at(c[r], s[r], t, w, low, high, 0.0)
        b[r] = total - offset[r]
        # a price at its lower end cannot fall, at its upper end it cannot rise
        if (tau[r] <= least[r] and b[r] < 0) or (tau[r] >= most[r] and b[r] > 0):
            b[r] = 0.0
        worst = max(worst, abs(b[r]))
    return worst


@inline
def _along(t, d, w, low, high, slope):
    """Return the step along scores t - step d at which the rising derivative, slope - <d, mu>, is 0."""
    step, below, above = 1.0, 0.0, np.inf
    for _ in range(60):
        total, rise = slope, 0.0
        for v in range(t.size):
            if d[v] != 0.0:
                value = (t[v] - step * d[v]) / w[v]
                if value <= low[v]:
                    value = low[v]
                elif value >= high[v]:
                    value = high[v]
                else:
                    rise += d[v] * d[v] / w[v]
                total -= d[v] * value
        if total < 0:
            below = step
        else:
            above = step
        new = step - total / rise if rise > 0 else np.inf if total < 0 else 0.0
        if not below < new < above:
            new = (below + above) / 2 if above < np.inf else 4 * step
        if abs(new - step) <= 1e-14 * step or new > 1e12:
            break
        step = new
    return step


@inline
def _dual(c, offset, t, w, low, high, tau):
    """Return the function that prices minimise."""
    total = 0.0
    for v in range(t.size):
        m = part(t[v], w[v], low[v], high[v])
        total += m * (t[v] - w[v] * m / 2)
    for r in range(tau.size):
        total += offset[r] * tau[r]
    return total


@kernel
def _response(first, last, free, tight, weight, columns, signs, g, out):
    n, count = g.shape[1], columns.shape[1]
    b, y, diagonal, work, room = np.empty(count), np.empty(count), np.empty(count), np.empty((4, count)), np.zeros(n)
    bounds, column, sign = np.empty(count + 1, np.int64), np.empty(columns[0].size, np.int64), np.empty(columns[0].size)
    for i in range(first, last):
        at = i // (len(g) // len(columns))
        total = held = 0
        bounds[0] = 0
        for r in range(count):
            if tight[i, r]:
                diagonal[held] = b[held] = 0.0
                for k in range(columns.shape[2]):
                    v = columns[at, r, k]
                    if v < 0:
                        break
                    if free[i, v]:
                        column[total], sign[total] = v, signs[at, r, k]
                        diagonal[held] += 1 / weight[i, v]
                        b[held] += signs[at, r, k] * g[i, v] / weight[i, v]
                        total += 1
                held += 1
                bounds[held] = total
        gradients(held, bounds, column, sign, diagonal, weight[i], 0.0, b, y, work, room)
        for v in range(n):
            out[i, v] = g[i, v] if free[i, v] else 0.0
        for r in range(held):
            for k in range(bounds[r], bounds[r + 1]):
                out[i, column[k]] -= sign[k] * y[r]
        for v in range(n):
            out[i, v] /= weight[i, v]
