"""The smoothed maximum of recursions, in one row and in rows side by side, against kernels.local_max.reference."""

import math

import numpy as np
import pytest
import torch
from tolerances import close

from polymax.backend.numba_math import kernel
from polymax.kernels.local_max import reference
from polymax.kernels.local_max.numba_lanes import LANES, store
from polymax.kernels.local_max.numba_max import max_and_weights, smooth_max, smoothing, weight_changes, weights

ALPHAS = [1.0, 1.2, 1.5, 2.0, 3.0, math.inf]


@kernel
def by_numba(a, da, value, p, dp, omega):
    store(value, 0, max_and_weights(a, len(a), p, omega))
    store(value, 1, smooth_max(a, len(a), omega))
    weights(a, len(a), p, omega)
    weight_changes(p, da, len(a), dp, omega)


def rows(n, scale):
    """LANES rows of n numbers: some forbidden, one row all forbidden, and where there is room ties."""
    rng = np.random.default_rng(n)
    a, da = rng.normal(size=(n, LANES)) * scale, rng.normal(size=(n, LANES))
    a[:, 0] = -np.inf
    if n > 2:
        a[1, 1:4], da[1, 1] = -np.inf, np.inf
        a[2, 4] = a[0, 4]
    return a, da


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "row"])
def test_numba(alpha, lanes):
    for n in (1, 2, 3, 17):
        for scale in (0.01, 1.0, 100.0):
            a, da = rows(n, scale)
            value, p, dp = np.empty((2, LANES)), np.empty_like(a), np.empty_like(a)
            if lanes:
                by_numba(a, da, value, p, dp, smoothing(alpha))
            for k in () if lanes else range(LANES):
                one = [x[:, k].copy() for x in (a, da, value, p, dp)]
                by_numba(*one, smoothing(alpha))
                for whole, column in zip((value, p, dp), one[2:], strict=True):
                    whole[:, k] = column
            x, dx = torch.from_numpy(a.T), torch.from_numpy(da.T)
            for found in torch.from_numpy(value):
                close(found, reference.value(x, alpha), f"values of {n} numbers for alpha {alpha}")
            close(torch.from_numpy(p.T), reference.weights(x, alpha), f"weights of {n} numbers for alpha {alpha}")
            # beyond alpha = 2 what has nearly no weight has nearly an infinite slope
            if alpha <= 2 or alpha == math.inf:
                close(torch.from_numpy(dp.T), reference.changes(x, dx, alpha), f"changes of weights for alpha {alpha}")


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_undefined_stays_undefined(alpha, bad):
    a = np.zeros((3, LANES))
    a[1] = bad
    value, p, dp = np.empty((2, LANES)), np.empty_like(a), np.empty_like(a)
    by_numba(a, np.zeros_like(a), value, p, dp, smoothing(alpha))
    assert np.isnan(value).all()
    assert np.isnan(p).all()
    assert reference.weights(torch.from_numpy(a.T), alpha).isnan().all()
