"""Tsallis slope in one pass over each row, for Numba."""

import math

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel, rows
from polymax.backend.numba_math import add, exp2, kernel, log2

LN_2 = math.log(2)
LOG2_E = 1 / LN_2
# the largest exponent of 2 that is used; larger ones are clipped
MOST = 60.0
# coefficients of the series of f at 0
SERIES = np.array([(k + 1) / math.factorial(k + 2) for k in range(14, -1, -1)])


def tsallis_slope(y: Tensor, g: Tensor, alphas: Tensor) -> Tensor:
    out = torch.empty(alphas.shape, dtype=torch.float64, device="cpu")
    known = memory(alphas.to(torch.float64).reshape(-1))
    parallel(_tsallis_slope, y.shape, 2, rows(y), rows(g.to(y.dtype)), known, memory(out.view(-1)))
    return out.to(alphas.dtype)


@kernel
def _tsallis_slope(start, stop, y, g, alphas, out):
    real = y.dtype.type
    one, zero, half = real(1), real(0), real(0.5)
    log = np.empty(y.shape[1], y.dtype)
    power = np.empty(y.shape[1], y.dtype)
    for i in range(start, stop):
        a = real(alphas[i] - 1)
        # three loops: in one, the polynomials do not fit the registers
        for j in range(log.size):
            log[j] = log2(y[i, j] if y[i, j] > 0 else one)
        for j in range(log.size):
            # for alpha < 1 powers of small weights are large; they are multiplied by even smaller numbers
            power[j] = exp2(min(a * log[j], real(MOST)))
        total = zero
        for j in range(log.size):
            logarithm = log[j] * real(LN_2)
            t = min(a * logarithm, real(MOST * LN_2))
            series = zero
            for k in range(SERIES.size):
                series = series * t + real(SERIES[k])
            near = -half < t < half
            square = logarithm * logarithm
            far = (power[j] * (t - one) + one) * square / (one if near else t * t)
            total = add(total, g[i, j] * (series * square if near else far))
        out[i] = -total
