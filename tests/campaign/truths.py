"""Upper bounds on what a mapping can reach, and what it did reach, for one row, in extended precision.

A bound comes from the dual, so that it holds whatever is wrong with the way to it: a mapping that reaches it is right.
"""

import numpy as np
import oracles
import torch

LONG = np.longdouble


def gini_value(z):
    """The maximum over the simplex of <z, p> - (sum p^2 - 1) / 2."""
    top = z.max()
    p = oracles._project(z - top, np.ones(z.size, LONG))
    return top + ((z - top) @ p) - (p @ p - 1) / 2


def fused_bound(x, strength):
    """<x, p> - strength TV(p) <= <x - D^T u, p> for every |u| <= strength: here the u of the taut string."""
    x, n = _above(x, (2 * strength + 1) * 4 * x.size + 10), x.size
    total = np.concatenate([[LONG(0)], np.cumsum(x)])
    string = np.zeros(n + 1, LONG)
    start, height = 0, LONG(0)
    while start < n:
        low, high, low_at, high_at = -np.inf, np.inf, n, n
        for k in range(start + 1, n + 1):
            slack = strength if k < n else 0
            below, above = ((total[k] + side * slack - height) / (k - start) for side in (-1, 1))
            if below > high or above < low:
                break
            if below >= low:
                low, low_at = below, k
            if above <= high:
                high, high_at = above, k
        else:
            string[start:] = height + (total[n] - height) / (n - start) * np.arange(n - start + 1)
            break
        knot, slope = (high_at, high) if below > high else (low_at, low)
        string[start : knot + 1] = height + slope * np.arange(knot - start + 1)
        start, height = knot, string[knot]
    u = np.clip(total - string, -strength, strength)
    u[0] = u[-1] = 0
    return gini_value(x - np.diff(u))


def one_group_bound(x, strength):
    """strength sqrt(n) norm(p) is the largest of strength sqrt(n) <u, p> over unit u: here that of the best weights."""
    p = oracles.one_group(torch.from_numpy(np.asarray(x - x.max(), np.float64)), strength=strength).numpy().astype(LONG)
    return gini_value(x - strength * np.sqrt(LONG(x.size)) * p / np.sqrt(p @ p))


def oscar_bound(x, strength):
    """The sum of pairwise maxima is the largest <w, p> over orders w of n - 1, ..., 0: here means of such orders."""
    x, n = np.sort(_above(x, (strength * x.size + 1) * 4 * x.size + 10))[::-1], x.size
    weights = np.arange(n - 1, -1, -1, dtype=LONG)
    z = decreasing(x - strength * weights)
    return gini_value(z)


def decreasing(y):
    """The nearest decreasing sequence, by pooling neighbours."""
    blocks = []
    for value in y:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (b, k), (a, m) = blocks.pop(), blocks.pop()
            blocks.append(((a * m + b * k) / (m + k), m + k))
    return np.concatenate([np.full(k, value, LONG) for value, k in blocks])


def capped_gini_bound(x, lower, upper, total=1):
    """The maximum over lower <= p <= upper, sum p = total, of <x, p> - p^2 / 2, from above."""

    def weights(tau):
        return np.clip(x - tau, lower, upper)

    def threshold(free, rest):
        return (x[free].sum() - rest) / free.sum()

    return _lagrangian(x, weights, lambda p: p * p / 2, (x - lower, x - upper), threshold, total)


def capped_shannon_bound(x, lower, upper, total=1):
    """The same with p log p in place of p^2 / 2."""

    def weights(tau):
        return np.clip(np.exp(np.minimum(x - tau, 1000) - 1), lower, upper)

    def threshold(free, rest):
        top = x[free].max()
        return top + np.log(np.exp(x[free] - top).sum()) - np.log(rest) - 1

    def penalty(p):
        return np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0)

    return _lagrangian(x, weights, penalty, (x - np.log(lower) - 1, x - np.log(upper) - 1), threshold, total)


def _lagrangian(x, weights, penalty, meetings, threshold, total):
    """The least of  total tau + sum of max over p of (x - tau) p - penalty(p), which bounds the maximum at every tau.

    The best tau is where weights sum to the total: between two points at which an entry meets a bound, the formula of
    the free entries gives it, as far as the digits of x go; the points themselves serve where these are used up.
    """
    points = np.unique(np.concatenate([t[np.isfinite(t)] for t in meetings]))
    if not points.size:
        points = x[:1]
    sums = np.array([weights(t).sum() for t in points])
    right = int(np.searchsorted(-sums, -LONG(total)))
    near = list(points[max(right - 2, 0) : right + 2])
    middle = (
        near[0] - 1 if right == 0 else near[-1] + 1 if right == points.size else (points[right - 1] + points[right]) / 2
    )
    free = (meetings[0] > middle) & (meetings[1] < middle)
    rest = LONG(total) - weights(middle)[~free].sum()
    if free.any() and rest > 0:
        near.append(threshold(free, rest))

    def bound(tau):
        p = weights(tau)
        gained = np.where(p == 0, 0, (x - tau) * p)
        # far away, digits of the sum are lost: with as much in addition it is still a bound
        lost = 4 * np.finfo(LONG).eps * (abs(total * tau) + np.abs(gained).sum())
        return total * tau + (gained - penalty(p)).sum() + lost

    return min(bound(tau) for tau in [*near, middle, *x])


def objective(x, p, omega):
    """<x, p> - omega(p), p being scaled to the sum it should have."""
    return (np.where(p == 0, 0, x * p)).sum() - omega(p)


def _above(x, depth):
    """Scores of at least their maximum less `depth`: larger scores have a larger maximum, so that a bound is one."""
    return np.maximum(x, x.max() - LONG(depth))
