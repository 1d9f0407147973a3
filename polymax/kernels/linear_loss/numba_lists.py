"""Blocks of logits to lists of candidates, and lists to the gradients of words, for Numba."""

import numpy as np

from polymax.backend.numba_math import add, inline, kernel, row_max
from polymax.kernels.linear_loss import FLAT

# most steps of the bound for a block, and the increase that ends them
STEPS = 10
SMALL = 0.02


@kernel
def scan_rows(start, stop, x, bias, first, lists, alpha, softcap):
    """Add the logits of a block above the bounds of rows to their lists, and raise the bounds."""
    count, ids, values, top, bound = lists
    width, size = x.shape[1], values.shape[1]
    fresh, places = np.empty(width + size, x.dtype), np.empty(width + size, np.int32)
    a = alpha - 1
    for i in range(start, stop):
        if count[i] < 0:
            continue
        row = x[i]
        if bias.size > 0:
            for j in range(width):
                row[j] += bias[j]
        if softcap > 0:
            for j in range(width):
                row[j] = softcap * np.tanh(row[j] / softcap)
        top[i] = max(top[i], row_max(row))
        t = max(np.float64(bound[i]), a * np.float64(top[i]) - 1)
        found = _above(row, lowest(t, a), first, fresh, places)
        if found == 0:
            continue
        n = count[i]
        # old entries come first, so that lists stay in the order of words
        t = _raised(values[i, :n], fresh[:found], t, a)
        n = _kept(values[i], ids[i], n, lowest(t, a))
        kept = _kept(fresh, places, found, lowest(t, a))
        bad = 0
        for j in range(kept):
            bad += fresh[j] != fresh[j]
        if bad > 0 or n + kept > size:
            count[i] = FLAT
            continue
        for j in range(kept):
            values[i, n + j], ids[i, n + j] = fresh[j], places[j]
        count[i] = n + kept
        bound[i] = t


@inline
def lowest(t, a):
    """Return the logit of a bound, lowered by a margin for rounding."""
    return (t - 1e-6 - 1e-6 * abs(t)) / a


@inline
def _above(row, low, first, fresh, places):
    """Pack entries above `low`, and NaN, to the front, with their words; return their count."""
    limit = row.dtype.type(low)
    found = 0
    for j in range(row.size):
        fresh[found] = row[j]
        places[found] = first + j
        found += not (row[j] <= limit)
    return found


@inline
def _kept(values, ids, n, low):
    limit = values.dtype.type(low)
    kept = 0
    for j in range(n):
        v, k = values[j], ids[j]
        values[kept] = v
        ids[kept] = k
        kept += not (v <= limit)
    return kept


@inline
def _raised(old, new, t, a):
    """Return a better lower bound of the threshold: Newton's method on a norm of the excess comes from the left."""
    r = 1 / a
    for _ in range(STEPS):
        total = lower = 0.0
        for part in (old, new):
            for j in range(part.size):
                d = a * np.float64(part[j]) - t
                if d > 0:
                    q = 1.0 if r == 1 else (d if r == 2 else d ** (r - 1))
                    lower += q
                    total += q * d
        if not total > 1:
            break
        step = (total - total ** (1 - a)) / lower
        t += step
        if step < SMALL:
            break
    return t


@kernel
def add_columns(start, stop, starts, rows, coefs, hidden, dw, db):
    """Add the gradients of its entries to the gradient of each word, in the order of rows."""
    for word in range(start, stop):
        out = dw[word]
        for k in range(starts[word], starts[word + 1]):
            c, h = coefs[k], hidden[rows[k]]
            db[word] = add(db[word], c)
            for j in range(out.size):
                out[j] += c * h[j]


@kernel
def add_rows(start, stop, words, coefs, sizes, weight, out):
    """Write the sum of the weights of each row's words, times their coefficients."""
    for i in range(start, stop):
        total = out[i]
        for j in range(total.size):
            total[j] = 0
        for k in range(sizes[i]):
            c, w = coefs[i, k], weight[words[i, k]]
            for j in range(total.size):
                total[j] += c * w[j]
