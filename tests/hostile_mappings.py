"""Mappings on hostile rows: each call says by how much, in units of rounding, its weights miss the optimum."""

import hostile
import numpy as np
import torch

import polymax as pm
from polymax.kernels.tv_prox import tv_prox


def tensor(x):
    return torch.from_numpy(np.ascontiguousarray(x))


def weights(call, x, absent):
    """The mapping's weights at the columns that are there, in NumPy; nothing may be elsewhere."""
    full = np.array(x)
    full[:, absent] = -np.inf
    y = call(tensor(full)).numpy()
    assert not y[:, absent].any(), "an absent entry has weight"
    return y[:, ~absent]


def strengths(rng, x):
    """Strengths on the grid of the scores, near it, or as large as the scores."""
    if np.abs(x).max() > 1e6:
        return np.abs(rng.choice(x.reshape(-1), len(x))).astype(x.dtype)
    return np.abs(hostile.moved_by_ulps(rng, rng.integers(0, 9, len(x)) * 0.5, x.dtype))


def miss_fused(rng, x, absent):
    s = strengths(rng, x)
    p = weights(lambda t: pm.fusedmax(t, tensor(s)[:, None]), x, absent)
    kept = x[:, ~absent]
    # a quarter of the scores, so that no entry of z is lower than floats go
    unit = 0.25 if np.abs(x).max() > 1e30 else 1.0
    z = tv_prox(tensor(kept) * unit, tensor(s) * unit, True).numpy()
    # fused weights are bit-equal, so that a strength beyond the range of the scores costs no rounding
    return _relative(hostile.fused_gap(kept, s, p, z), kept, np.minimum(s, -hostile.below_top(kept).min(-1)), p)


def miss_oscar(rng, x, absent):
    s = strengths(rng, x) / 4
    p = weights(lambda t: pm.oscarmax(t, tensor(s)[:, None]), x, absent)
    return _relative(hostile.oscar_gap(x[:, ~absent], s, p), x[:, ~absent], s, p)


def _relative(gap, x, pull, p):
    """The loss, in units of the rounding of a pull by other entries; and how far weights are from a sum of 1."""
    n, eps = x.shape[-1], np.finfo(x.dtype).eps
    return np.maximum(gap / (eps * n * (1 + n * pull.astype(hostile.LONG))), _off(p, 1) / (eps * n))


def _off(p, total):
    return np.abs(p.astype(hostile.LONG).sum(-1) - total) / np.maximum(total, 1)


def miss_threshold(make, oracle, omega, exponents):
    def miss(rng, x, absent):
        alpha = float(rng.choice(exponents))
        as_tensor = rng.random() < 0.5
        given = torch.full((len(x), 1), alpha, dtype=torch.float64) if as_tensor else alpha
        p = weights(lambda t: make(given).argmax(t), x, absent)
        kept = x[:, ~absent]
        best = oracle(kept, alpha)
        gap = hostile.value(kept, best, omega(best, alpha)) - hostile.value(
            kept, p.astype(hostile.LONG), omega(p, alpha)
        )
        eps = np.finfo(x.dtype).eps
        # a p-norm and a power have as many roundings as terms; an exponent multiplies them
        return np.maximum(gap, _off(p, 1)) / (eps * x.shape[-1] * max(1, 1 / abs(alpha)))

    return miss


def miss_bounded(entropic):
    def miss(rng, x, absent):
        n = (~absent).sum()
        grid = rng.integers(0, 5, x.shape) * 0.25
        upper = np.maximum(grid, np.ceil(4 / n) * 0.25).astype(x.dtype)
        lower = (np.floor(4 / n) * 0.25 * (rng.random(x.shape) < 0.3)).astype(x.dtype)
        mapping = pm.csoftmax if entropic else pm.csparsemax
        p = weights(lambda t: mapping(t, tensor(upper), tensor(lower)), x, absent)
        return _capped(x, p, lower, upper, 1.0, entropic, absent)

    return miss


def miss_budget(rng, x, absent):
    k = rng.integers(0, 2 * (~absent).sum() + 1, len(x)) / 2
    p = weights(lambda t: pm.budgetmax(t, tensor(k.astype(x.dtype))[:, None]), x, absent)
    return _capped(x, p, 0 * x, 0 * x + 1, k[:, None], False, absent)


def _capped(x, p, lower, upper, total, entropic, absent):
    kept = x[:, ~absent]
    best = hostile.bounded(kept, lower[:, ~absent], upper[:, ~absent], total, entropic)
    return np.abs(best - p).max(-1) / (np.finfo(x.dtype).eps * x.shape[-1])


MAPPINGS = {
    "sparsemax": miss_threshold(lambda a: pm.Gini(), hostile.tsallis, hostile.tsallis_omega, [2.0]),
    "entmax": miss_threshold(
        pm.Tsallis, hostile.tsallis, hostile.tsallis_omega, [0.25, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0]
    ),
    "normmax": miss_threshold(pm.Norm, hostile.norm, hostile.norm_omega, [1.5, 2.0, 3.0]),
    "sq_pnorm_max": miss_threshold(
        pm.SquaredPNorm, hostile.squared_norm, lambda p, a: hostile.norm_omega(p, a) ** 2 / 2, [1.5, 2.0, 3.0]
    ),
    "fusedmax": miss_fused,
    "oscarmax": miss_oscar,
    "csoftmax": miss_bounded(True),
    "csparsemax": miss_bounded(False),
    "budgetmax": miss_budget,
}
KINDS = {"near-ties": hostile.near_ties, "extremes": hostile.extremes}


def worst(name, kind, dtype, seed, rows=500):
    """The largest miss over rows of 1 to 12 entries, some of them absent; and the row."""
    rng = np.random.default_rng([seed, *map(ord, name + kind)])
    n = int(rng.integers(1, 13))
    x = KINDS[kind](rng, rows, n, dtype)
    absent = rng.random(n) < 0.2 * (rng.random() < 0.3)
    absent[rng.integers(n)] = False
    with np.errstate(over="ignore", under="ignore"):
        miss = MAPPINGS[name](rng, x, absent)
    miss = np.where(np.isnan(miss), np.inf, miss)
    at = int(miss.argmax())
    return float(miss[at]), np.where(absent, -np.inf, x[at])
