"""OSCAR prox for Numba: sort, pool adjacent violators, undo the sort.

Short rows are sorted by counting the larger entries, which vectorises; long rows by a radix sort of the bits of the
floats. Both are stable.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, SMALL, beside, plain, run
from polymax.kernels.isotonic.cpu import SMALL_UNIT, WIDEST, pool
from polymax.kernels.numba_math import inline, kernel, rows_at

# up to here counting is faster than clearing the counters of the radix sort
SHORT = 96
WORD = 0xFFFFFFFF
# integers that are as wide as floats
_BITS = {torch.float32: np.int32(0), torch.float64: np.int64(0)}


def oscar_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> tuple[Tensor, Tensor]:
    scores, n = plain(x), x.shape[-1]
    z, order = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int32)
    strengths, count = beside(strength, x.shape[:-1]), x.numel() // max(n, 1)
    args = (
        n, scores.data_ptr(), strengths.data_ptr(), z.data_ptr(), order.data_ptr(), REALS[z.dtype], _BITS[z.dtype],
        REALS[strengths.dtype], strengths.numel() > 1, shifted, torch.finfo(x.dtype).min,
    )  # fmt: skip
    if 10 * n * count < SMALL:
        _oscar_prox(0, count, *args)
    else:
        run(_oscar_prox, count, 10 * n, *args)
    return z if z.dtype == x.dtype else z.to(x.dtype), order


@kernel
def _oscar_prox(
    start, stop, n, x_at, strengths_at, z_at, order_at, real, word, real_strength, many, shifted, lowest
):  # fmt: skip
    x, z, order = rows_at(x_at, stop, n, real), rows_at(z_at, stop, n, real), rows_at(order_at, stop, n, np.int32(0))
    bits, strengths = rows_at(x_at, stop, n, word), rows_at(strengths_at, 1, stop, real_strength)[0]
    scratch = np.empty(n, x.dtype), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    keys = np.empty(n, np.int64), np.empty(n, np.int64)
    counts = np.empty((4, 256), np.uint32)
    y = np.empty(n)
    sums = np.empty(n)
    widths = np.empty(n)
    for i in range(start, stop):
        row = x[i]
        bad = 0
        for j in range(n):
            bad += not (row[j] < np.inf)
        strength = np.float64(strengths[i if many else 0])
        if bad > 0 or not strength >= 0:
            z[i] = np.nan
            for j in range(n):
                order[i, j] = j
            continue
        if n <= SHORT:
            count = _counting_sort(row, scratch, order[i])
        else:
            count = _radix_sort(row, bits[i], keys, counts, order[i])
        if count > 0:
            ranks = order[i]
            base, last = np.float64(row[ranks[0]]), np.float64(row[ranks[count - 1]])
            unit = SMALL_UNIT if base - last > WIDEST else 1.0
            # beyond this all entries are one cluster; a larger strength only loses digits
            strength = min(strength * unit, base * unit - last * unit)
            for r in range(count):
                y[r] = row[ranks[r]] * unit - base * unit - strength * (0.5 * (count - 1) - r)
            pool(y[:count], sums, widths)
            back, away = (0.0, y[0]) if shifted else (base, 0.0)
            for r in range(count):
                # a shifted entry may be lower than any finite number
                z[i, ranks[r]] = max((y[r] - away) * (1 / unit) + back, lowest)
        if count < n:
            for j in range(n):
                if row[j] == -np.inf:
                    z[i, j] = -np.inf
                    order[i, count] = j
                    count += 1


@inline
def _counting_sort(x, scratch, order):
    """Indices of the entries other than -inf, largest first, into order; their count."""
    values, index, seen, larger = scratch
    count = 0
    for j in range(x.size):
        values[count] = x[j]
        index[count] = j
        seen[j] = 0
        count += x[j] != -np.inf
    for j in range(count):
        larger[j] = 0
    # a few at a time, all against each of them: the sums stay in vectors
    whole = count - count % 4
    for k in range(0, whole, 4):
        a, b, c, d = values[k], values[k + 1], values[k + 2], values[k + 3]
        for j in range(count):
            e = values[j]
            larger[j] += np.int32(a > e) + np.int32(b > e) + np.int32(c > e) + np.int32(d > e)
    for k in range(whole, count):
        a = values[k]
        for j in range(count):
            larger[j] += np.int32(a > values[j])
    for j in range(count):
        place = larger[j]
        order[place + seen[place]] = index[j]
        seen[place] += 1
    return count


@inline
def _radix_sort(x, bits, keys, counts, order):
    """The same, by the bits of x: words of 32 bits, the lowest first, packed above the index."""
    packed = keys[0]
    low = np.int64((1 << (8 * bits.itemsize - 1)) - 1)
    count = 0
    for j in range(x.size):
        packed[count] = _ascending(bits[j], low) << 32 | j
        count += x[j] != -np.inf
    _sort_bytes(keys, count, counts)
    if bits.itemsize == 8:
        for r in range(count):
            j = packed[r] & WORD
            packed[r] = (_ascending(bits[j], low) >> 32) << 32 | j
        _sort_bytes(keys, count, counts)
    for r in range(count):
        order[r] = packed[r] & WORD
    return count


@inline
def _ascending(bits, low):
    """A key that ascends, read as unsigned, where the float of these bits descends; `low` masks all but the sign."""
    # -0.0 is 0.0; no branch, since signs are as good as random
    key = np.int64(bits) & -np.int64(bits != -low - 1)
    # the bits of negative floats ascend already
    return key ^ (~(key >> 63) & low)


@inline
def _sort_bytes(keys, n, counts):
    """Sort keys[0][:n] by the upper 32 bits, a byte at a time; keys[1] is room."""
    here, there = keys
    counts[:] = 0
    for r in range(n):
        for p in range(4):
            counts[p, (here[r] >> (8 * p + 32)) & 255] += 1
    for p in range(4):
        places = counts[p]
        first = np.uint32(0)
        for d in range(256):
            size = places[d]
            places[d] = first
            first += size
        for r in range(n):
            digit = (here[r] >> (8 * p + 32)) & 255
            place = places[digit]
            places[digit] = np.uint32(place + 1)
            there[place] = here[r]
        here, there = there, here
