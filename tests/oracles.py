"""What the mappings should return, from their optimality conditions alone: no kernel of ours is used here.

Extended precision where NumPy has it. Each oracle maps finite scores `(*batch, n)` to weights in float64.
"""

import numpy as np
import torch

LONG = np.longdouble


def rowwise(solve):
    """Make a function of one NumPy row a function of a tensor of rows."""

    def oracle(x, **parameters):
        rows = x.detach().cpu().double().numpy().reshape(-1, x.shape[-1])
        weights = [np.asarray(solve(row.astype(LONG), **parameters), np.float64) for row in rows]
        return torch.from_numpy(np.array(weights).reshape(x.shape))

    return oracle


def bisect(excess, low, high):
    """The root of a decreasing function."""
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@rowwise
def zero(x):
    return np.arange(x.size) == np.argmax(x)


@rowwise
def tsallis(x, alpha):
    """The gradient of Omega is p^a / a, a = alpha - 1, up to a constant: p^a = 1 + a (x - t)."""
    x, a = x - x.max(), LONG(alpha) - 1

    def weights(t):
        if a == 0:
            return np.exp(x - t)
        s = a * (x - t)
        return np.where(s > -1, np.exp(np.log1p(np.maximum(s, -1 + LONG(1e-18))) / a), 0)

    high = LONG(x.size) if a <= 0 else min(1 / a, np.log(LONG(x.size)) + 1)
    # for alpha > 1 the best entry alone already asks for t >= 0
    p = weights(bisect(lambda t: weights(t).sum() - 1, LONG(0), LONG(high)))
    return p / p.sum()


def shannon(x):
    return tsallis(x, alpha=1)


def gini(x):
    return tsallis(x, alpha=2)


@rowwise
def norm(x, alpha):
    """The gradient of Omega is q^(alpha-1), q being p over its norm: q = (x - tau)_+^(1/(alpha-1))."""
    x, a = x - x.max(), LONG(alpha)

    def direction(tau):
        return np.maximum(x - tau, 0) ** (1 / (a - 1))

    q = direction(bisect(lambda tau: (direction(tau) ** a).sum() - 1, LONG(-1), LONG(0)))
    return q / q.sum()


@rowwise
def squared_norm(x, p):
    """The gradient of Omega is norm(y)^(2-p) y^(p-1): y = q / sum q fits if sum q = norm(q)^(2-p)."""
    x, a = x - x.max(), LONG(p)

    def direction(tau):
        return np.maximum(x - tau, 0) ** (1 / (a - 1))

    def excess(tau):
        q = direction(tau)
        return 1 if tau == -1 else q.sum() - (q**a).sum() ** ((2 - a) / a)

    # at tau = -1 the largest entry of q is 1
    q = direction(bisect(excess, LONG(-1), LONG(0)))
    return q / q.sum()


@rowwise
def bounded_shannon(x, lower, upper, total=1.0):
    """Weights are exp(x - tau), cut off at the bounds, of which none is above 1."""
    x = x - x.max()
    return _capped(lambda tau: np.clip(np.exp(np.minimum(x - tau, 1)), lower, upper), x, total)


@rowwise
def bounded_gini(x, lower, upper, total=1.0):
    """Weights are x - tau, cut off at the bounds."""
    return _capped(lambda tau: np.clip(x - tau, lower, upper), x, total)


def _capped(weights, x, total):
    reach = x.max() - x.min() + x.size + 1
    return weights(bisect(lambda tau: weights(tau).sum() - total, x.min() - reach, x.max() + reach))


@rowwise
def one_group(x, strength):
    """With the norm r of p, p (1 + c / r) is x - tau on the support: sparsemax of x / t at the right t = 1 + c / r."""
    price = LONG(strength) * np.sqrt(LONG(x.size))

    def weights(t):
        return _project((x - x.max()) / t, np.ones(x.size, LONG))

    # the norm is between 1 / sqrt(n) and 1
    return weights(bisect(lambda t: 1 + price / np.sqrt((weights(t) ** 2).sum()) - t, 1 + price, 1 + price * x.size))


def budget(x, k):
    return bounded_gini(x, lower=0.0, upper=1.0, total=k)


@rowwise
def fused(x, strength):
    """Total variation along the chain."""
    return _graph_variation(x, strength, [(i, i + 1) for i in range(x.size - 1)])


@rowwise
def oscar(x, strength):
    """max(a, b) = (a + b + |a - b|) / 2, and a + b summed over pairs is constant on the simplex."""
    pairs = [(i, j) for i in range(x.size) for j in range(i + 1, x.size)]
    return _graph_variation(x, strength / 2, pairs)


def _graph_variation(x, strength, edges):
    """Argmin over the simplex of |p - x|^2 / 2 + strength sum over edges |p_i - p_j|.

    Accelerated projected gradient on the dual, p = projection of x - D^T u with |u| <= strength, finds which
    entries are equal; what is left is to project the means of the groups, pushed by the edges between them.
    """
    x = np.asarray(x - x.max(), np.float64)
    edges = np.array(edges, int).reshape(-1, 2)
    difference = np.eye(x.size)[edges[:, 1]] - np.eye(x.size)[edges[:, 0]]
    rate = 1 / max(np.linalg.eigvalsh(difference.T @ difference).max(), 1)
    u = ahead = np.zeros(len(edges))
    speed = 1.0
    for _ in range(20000):
        p = _project(x - ahead @ difference, np.ones(x.size))
        new = np.clip(ahead + rate * (difference @ p), -strength, strength)
        # momentum that points uphill is forgotten
        speed, before = (1.0, 1.0) if (ahead - new) @ (new - u) > 0 else ((1 + np.sqrt(1 + 4 * speed**2)) / 2, speed)
        ahead, moved = new + (before - 1) / speed * (new - u), np.abs(new - u).max(initial=0)
        u = new
        if moved < 1e-10:
            break
    p = _project(x - u @ difference, np.ones(x.size))
    group = np.arange(x.size)
    for i, j in edges:
        if abs(p[i] - p[j]) < 1e-7:
            group[group == group[j]] = group[i]
    parted = group[edges[:, 0]] != group[edges[:, 1]]
    pushed = x - strength * (np.sign(difference @ p) * parted) @ difference
    _, group, size = np.unique(group, return_inverse=True, return_counts=True)
    exact = _project(np.bincount(group, pushed) / size, size)[group]
    assert np.abs(exact - p).max() < 1e-6, "the dual method has not converged"
    return exact


def _project(z, size):
    """The point (z - tau)_+ whose sum, weighted by size, is 1: from the sorted values."""
    order = np.argsort(-z)
    mass = np.cumsum(size[order])
    tau = (np.cumsum((size * z)[order]) - 1) / mass
    return np.maximum(z - tau[np.nonzero(z[order] > tau)[0][-1]], 0)


@rowwise
def divergence(x, reference, alpha):
    """Weights q u with u^a = 1 + a (x - t), a = alpha - 1: the gradient of Omega is u^a / a up to a constant."""
    x, a, q = x - x.max(), LONG(alpha) - 1, np.asarray(reference, LONG)

    def weights(t):
        if a == 0:
            return q * np.exp(x - t)
        s = a * (x - t)
        return q * np.where(s > -1, np.exp(np.log1p(np.maximum(s, -1 + LONG(1e-18))) / a), 0)

    # below alpha = 1 no score reaches t + 1 / (1 - alpha)
    low = LONG(-1e3) if a >= 0 else 1 / a + LONG(1e-18)
    p = weights(bisect(lambda t: weights(t).sum() - 1, low, LONG(1e6)))
    return p / p.sum()
