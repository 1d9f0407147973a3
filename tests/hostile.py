"""Rows that break arithmetic, and certificates that a mapping's weights are optimal, by other means than ours.

Certificates are computed in extended precision, which has room for sums of the largest floats: the optimum in closed
form or by bisection, or, for fusedmax, a dual point, whose value no weights can exceed.
"""

import numpy as np

LONG = np.longdouble
EPS = {"float64": np.finfo(np.float64).eps, "float32": np.finfo(np.float32).eps}


def near_ties(rng, count, n, dtype, reach=3):
    """Scores on a grid of 0.5 or 1, each moved by a few units in the last place; zeros of both signs."""
    x = rng.integers(-6, 7, (count, n)) * rng.choice([0.5, 1.0], (count, 1))
    return moved_by_ulps(rng, np.where(rng.random((count, n)) < 0.5, x, -x), dtype, reach)


def moved_by_ulps(rng, x, dtype, reach=3):
    x = np.asarray(x, dtype)
    ulps = rng.integers(-reach, reach + 1, x.shape) * (rng.random(x.shape) < 0.6)
    return np.asarray(x + ulps * np.spacing(np.abs(x)), dtype)


def extremes(rng, count, n, dtype):
    """Scores of the largest and smallest magnitudes, alone and beside each other and beside ordinary ones."""
    info = np.finfo(dtype)
    sizes = [info.max, info.max / 2, info.max / 1e8, info.tiny, info.smallest_subnormal, 0.0, 1.0, 0.5, 1 / info.max]
    some = np.asarray([rng.choice(rng.choice(sizes, rng.integers(1, 4), replace=False), n) for _ in range(count)])
    sign = rng.choice([-1.0, 1.0], (count, n))
    return moved_by_ulps(rng, np.asarray(some * sign * 0.999, dtype), dtype, 2)


def below_top(x):
    return x.astype(LONG) - x.astype(LONG).max(-1, keepdims=True)


def bisect(excess, low, high, steps=100):
    """The root of a decreasing function, row by row."""
    for _ in range(steps):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


def sparsemax(x):
    """Weights in closed form, by sorting."""
    z = below_top(x)
    ordered = -np.sort(-z, -1)
    ranks = np.arange(1, z.shape[-1] + 1)
    total = np.cumsum(ordered, -1)
    size = (1 + ranks * ordered > total).sum(-1, keepdims=True)
    tau = (np.take_along_axis(total, size - 1, -1) - 1) / size
    return np.maximum(z - tau, 0)


def half_square(p):
    return (p * p).sum(-1) / 2


def value(x, p, omega):
    """<x, p> - Omega(p), the scores counted from their maximum; what has no weight does not count."""
    return np.where(p == 0, 0, below_top(x) * p).sum(-1) - omega


def fused_gap(x, strength, p, z):
    """What weights p of fusedmax lose to a dual point, read off the prox z: at least what they lose to the optimum.

    For |u| <= strength, the maximum over the simplex of <x - D' u, q> - |q|^2 / 2 is at least the value of any weights.
    """
    scores, s = below_top(x), strength.astype(LONG)
    # of z, only where it parts and in which direction: between entries that part, u is the strength, up or down
    parts = np.diff(z, axis=-1) != 0
    u = s[:, None] * np.sign(np.diff(z, axis=-1))
    run = np.concatenate([np.zeros((len(x), 1), int), np.cumsum(parts, -1)], -1)
    same = run[:, :, None] == run[:, None, :]
    pulls = scores + np.diff(np.where(parts, u, 0), prepend=0, append=0, axis=-1)
    # within a run, u sums what each entry is moved by to the mean
    moved = (same * (pulls[:, None, :] - pulls[:, :, None])).sum(-1) / same.sum(-1)
    for i in range(x.shape[-1] - 1):
        before = np.where(parts[:, i - 1], 0, u[:, i - 1]) if i else 0
        u[:, i] = np.where(parts[:, i], u[:, i], np.clip(before + moved[:, i], -s, s))
    shifted = scores + np.diff(u, prepend=0, append=0, axis=-1)
    best = sparsemax(shifted)
    top = shifted.max(-1)
    bound = top + value(shifted, best, half_square(best))
    p = p.astype(LONG)
    variation = np.abs(np.diff(p, axis=-1)).sum(-1)
    return bound - value(x, p, half_square(p) + s * variation)


def oscar_gap(x, strength, p):
    """What weights of oscarmax lose to the optimum: sparsemax of an isotonic regression, by its min-max formula."""
    scores, s, n = below_top(x), strength.astype(LONG)[:, None], x.shape[-1]
    order = np.argsort(-scores, -1, kind="stable")
    lowered = np.take_along_axis(scores, order, -1) - s * (n - 1 - np.arange(n))
    sums = np.concatenate([np.zeros((len(x), 1), LONG), np.cumsum(lowered, -1)], -1)
    first, last = np.arange(n)[:, None], np.arange(n)[None, :]
    means = (sums[:, 1:][:, None, :] - sums[:, :-1][:, :, None]) / np.maximum(last - first + 1, 1)
    means = np.where(last >= first, means, -np.inf)
    # z_i is the least, over first <= i, of the largest mean that ends at i or after
    tails = np.maximum.accumulate(means[:, :, ::-1], -1)[:, :, ::-1]
    z = np.stack([tails[:, : i + 1, i].min(-1) for i in range(n)], -1)
    best = np.zeros_like(z)
    np.put_along_axis(best, order, sparsemax(z), -1)

    def objective(q):
        pairs = (-np.sort(-q, -1) * (n - 1 - np.arange(n))).sum(-1)
        return value(x, q, half_square(q) + s[:, 0] * pairs)

    return objective(best) - objective(p.astype(LONG))


def tsallis(x, alpha):
    z, a = below_top(x), np.asarray(alpha, LONG) - 1
    n = LONG(x.shape[-1])
    high = np.log(n) if a == 0 else min(1 / a, (1 - n**-a) / a) if a > 0 else (n**-a - 1) / -a

    def weights(t):
        with np.errstate(all="ignore"):
            s = a * (z - t)
            inside = np.exp(z - t) if a == 0 else np.exp(np.log1p(np.maximum(s, -1)) / a)
            return np.where(s > -1, inside, 0) if a > 0 else inside

    t = bisect(lambda t: weights(t).sum(-1, keepdims=True) - 1, np.zeros((len(x), 1), LONG), np.full((len(x), 1), high))
    p = weights(t)
    return p / p.sum(-1, keepdims=True)


def tsallis_omega(p, alpha):
    p, alpha = p.astype(LONG), LONG(alpha)
    if alpha == 1:
        return (p * np.log(np.where(p > 0, p, 1))).sum(-1)
    return (np.where(p > 0, p**alpha, 0).sum(-1) - 1) / (alpha * (alpha - 1))


def norm_direction(x, a):
    z, r = below_top(x), 1 / (LONG(a) - 1)
    return lambda tau: np.maximum(z - tau, 0) ** r


def norm(x, alpha):
    q, low = norm_direction(x, alpha), np.full((len(x), 1), -1, LONG)
    p = q(bisect(lambda tau: (q(tau) ** LONG(alpha)).sum(-1, keepdims=True) - 1, low, 0 * low))
    return p / p.sum(-1, keepdims=True)


def squared_norm(x, alpha):
    a, low = LONG(alpha), np.full((len(x), 1), -1, LONG)
    q = norm_direction(x, alpha)

    def excess(tau):
        d = q(tau)
        return np.where(tau == -1, 1, d.sum(-1, keepdims=True) - (d**a).sum(-1, keepdims=True) ** ((2 - a) / a))

    p = q(bisect(excess, low, 0 * low))
    return p / p.sum(-1, keepdims=True)


def norm_omega(p, alpha):
    p, a = p.astype(LONG), LONG(alpha)
    return (p**a).sum(-1) ** (1 / a)


def bounded(x, lower, upper, total, entropic):
    """Weights clip(x - tau) or clip(exp(x - tau)), with tau counted from each score in turn: one of them is near it."""
    low, high = (np.broadcast_to(np.asarray(b, LONG), x.shape) for b in (lower, upper))
    best, missed = np.zeros(x.shape, LONG), np.full((len(x), 1), np.inf, LONG)
    for j in range(x.shape[-1]):
        d = x.astype(LONG) - x.astype(LONG)[:, j : j + 1]

        def weights(t, d=d):
            with np.errstate(over="ignore"):
                return np.clip(np.exp(d - t) if entropic else d - t, low, high)

        def excess(t, weights=weights):
            return weights(t).sum(-1, keepdims=True) - total

        with np.errstate(divide="ignore"):
            ends = [-(np.log(b[:, j : j + 1]) if entropic else b[:, j : j + 1]) for b in (high, low)]
        left, right = (np.clip(end, -800, 800) for end in ends)
        p = weights(bisect(excess, left, right))
        miss = np.abs(p.sum(-1, keepdims=True) - total)
        best, missed = np.where(miss < missed, p, best), np.minimum(miss, missed)
    return best
