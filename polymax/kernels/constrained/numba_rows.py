"""Constraint rows in Numba: the step of one price, and of all prices by conjugate gradients on the free variables."""

import numpy as np

from polymax.backend.numba_math import inline, kernel


@inline
def part(t, weight, low, high):
    """Return a variable from its score less prices."""
    return min(max(t / weight, low), high)


@inline
def sum_at(columns, signs, t, weight, low, high, step):
    """Return <a, mu> if one price rises by `step`, and the rate at which it then falls."""
    total = slope = 0.0
    for k in range(columns.size):
        v = columns[k]
        if v < 0:
            break
        value = (t[v] - signs[k] * step) / weight[v]
        if value <= low[v]:
            value = low[v]
        elif value >= high[v]:
            value = high[v]
        else:
            slope += 1 / weight[v]
        total += signs[k] * value
    return total, slope


@inline
def next_break(columns, signs, t, weight, low, high, step, up):
    """Return the next step, up or down, at which a variable becomes free; infinite if there is none."""
    found = np.inf if up else -np.inf
    for k in range(columns.size):
        v = columns[k]
        if v < 0:
            break
        if low[v] < high[v]:
            for end in (low[v], high[v]):
                # (t - sign step) / weight = end
                at = signs[k] * (t[v] - weight[v] * end)
                if up and step < at < found:
                    found = at
                if not up and found < at < step:
                    found = at
    return found


@inline
def best_step(columns, signs, offset, t, weight, low, high, least, most):
    """Return the change of one price, between `least` and `most`, that satisfies its row."""
    step, below, above = 0.0, least, most
    for _ in range(60):
        total, slope = sum_at(columns, signs, t, weight, low, high, step)
        miss = total - offset
        if miss == 0.0:
            break
        # the sum falls as the price rises
        if miss > 0:
            below = max(below, step)
        else:
            above = min(above, step)
        if slope > 0:
            new = step + miss / slope
        else:
            new = next_break(columns, signs, t, weight, low, high, step, miss > 0)
            # just past the break, so that the variable is free
            if np.isfinite(new):
                new += (1e-12 + 1e-12 * abs(new)) * (1.0 if miss > 0 else -1.0)
        if new <= below or new >= above:
            if new >= above and above == most:
                new = most
            elif new <= below and below == least:
                new = least
            else:
                new = (below + above) / 2
        if new == step or not np.isfinite(new):
            break
        step = new
    return step


@kernel
def gradients(count, start, column, sign, diagonal, weight, damping, b, y, work, room):
    """Write y with  (A W^-1 A^T + damping) y = b  for rows that list free variables only, by conjugate gradients.

    Row r lists `column[start[r]:start[r + 1]]`; an empty row keeps y = 0. If rows depend on each other, y is any
    solution. `work` (4, R) and `room` (n,), zeros, are workspace.
    """
    r, z, p, q = work[0], work[1], work[2], work[3]
    y[:count] = 0.0
    for i in range(count):
        r[i] = b[i] if diagonal[i] > 0 else 0.0
    enough = 0.0
    # the second pass solves for the rounding of the first
    for _ in range(2):
        rz = 0.0
        for i in range(count):
            z[i] = r[i] / diagonal[i] if diagonal[i] > 0 else 0.0
            p[i] = z[i]
            rz += r[i] * z[i]
        # below this, iterations would follow rounding into directions in which rows depend on each other
        enough = max(enough, 1e-29 * rz)
        for _turn in range(4 * count + 20):
            if not rz > enough:
                break
            for i in range(count):
                for k in range(start[i], start[i + 1]):
                    room[column[k]] += sign[k] * p[i]
            pq = size = 0.0
            for i in range(count):
                total = 0.0
                for k in range(start[i], start[i + 1]):
                    total += sign[k] * room[column[k]] / weight[column[k]]
                q[i] = total + damping * p[i]
                pq += p[i] * q[i]
                size += diagonal[i] * p[i] * p[i]
            for i in range(count):
                for k in range(start[i], start[i + 1]):
                    room[column[k]] = 0.0
            if not pq > 1e-14 * size:
                break
            rate = rz / pq
            new = 0.0
            for i in range(count):
                y[i] += rate * p[i]
                r[i] -= rate * q[i]
                z[i] = r[i] / diagonal[i] if diagonal[i] > 0 else 0.0
                new += r[i] * z[i]
            for i in range(count):
                p[i] = z[i] + new / rz * p[i]
            rz = new
        # the residual, recomputed
        for i in range(count):
            for k in range(start[i], start[i + 1]):
                room[column[k]] += sign[k] * y[i]
        for i in range(count):
            total = 0.0
            for k in range(start[i], start[i + 1]):
                total += sign[k] * room[column[k]] / weight[column[k]]
            r[i] = b[i] - total - damping * y[i] if diagonal[i] > 0 else 0.0
        for i in range(count):
            for k in range(start[i], start[i + 1]):
                room[column[k]] = 0.0
