"""The SparseMAP loop of one instance in Numba: weights of the structures found so far, and how a new one changes them.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

Structures are rows of bytes; their overlaps are whole numbers, so that gram is exact. Everything is in float64.
"""

import numpy as np

from polymax.kernels.numba_math import kernel

ACTIVE_SET, FRANK_WOLFE, AWAY_STEP, PAIRWISE = 0, 1, 2, 3
GOING, CONVERGED, FULL = 0, 1, 2

# weights below this are rounding
_NOTHING = 1e-13
# a structure whose squared distance to the span of the others is below this share of its size lies in it
_DEPENDENT = 1e-9


@kernel
def improve(rule, tol, count, vertex, score, rows, gram, b, p, mu, factor, work):
    """Take a structure in: how many have weight after it, the duality gap before it, and whether that was the end.

    Shapes: vertex (d,), rows (k, d) bytes; gram, factor (k, k); b, p (k,); mu (d,); work (4, k).
    """
    gains, overlaps = work[0], work[1]
    current = 0.0
    for i in range(count):
        gains[i] = b[i]
        for j in range(count):
            gains[i] -= gram[i, j] * p[j]
        current += p[i] * gains[i]
    reach = 0.0
    size = 0
    for d in range(vertex.size):
        if vertex[d]:
            reach += mu[d]
            size += 1
    gap = score - reach - current
    if not gap > tol * (1 + abs(current)):
        return count, gap, CONVERGED
    place = -1
    for i in range(count):
        both = 0
        for d in range(vertex.size):
            both += rows[i, d] & vertex[d]
        overlaps[i] = both
        if both == size and gram[i, i] == size:
            place = i
    if place >= 0 and rule == ACTIVE_SET:
        # a structure that has weight cannot do better than the exact weights, but for rounding
        return count, gap, CONVERGED
    if place < 0:
        if count == b.size:
            return count, gap, FULL
        place = count
        rows[place] = vertex
        b[place] = score
        p[place] = 0.0
        gains[place] = score - reach
        for i in range(count):
            gram[i, place] = gram[place, i] = overlaps[i]
        gram[place, place] = size
        count += 1
    if rule == ACTIVE_SET:
        count = _admit(count, rows, gram, b, p, factor, work)
        count = exact(count, rows, gram, b, p, factor, work)
    else:
        _shift(rule, place, count, gram, b, p, gains, work[2])
        count = _drop(count, rows, gram, b, p)
    mean(count, rows, p, mu)
    return count, gap, GOING


@kernel
def mean(count, rows, p, mu):
    """mu = sum of p times rows."""
    mu[:] = 0.0
    for i in range(count):
        for d in range(mu.size):
            mu[d] += p[i] * rows[i, d]


@kernel
def exact(count, rows, gram, b, p, factor, work):
    """The best weights of independent structures, dropping those that would become negative."""
    target, one = work[2], work[3]
    while True:
        for i in range(count):
            target[i] = b[i]
            one[i] = 1.0
        _solve(count, factor, target)
        _solve(count, factor, one)
        share, mass = 1.0, 0.0
        for i in range(count):
            share -= target[i]
            mass += one[i]
        share /= mass
        first, length = -1, 1.0
        for i in range(count):
            target[i] += share * one[i]
            if target[i] <= _NOTHING:
                fall = p[i] - target[i]
                step = p[i] / fall if fall > 0 else 0.0
                if first < 0 or step < length:
                    first, length = i, step
        if first < 0:
            for i in range(count):
                p[i] = target[i]
            return count
        for i in range(count):
            p[i] = max(p[i] + length * (target[i] - p[i]), 0.0)
        _remove(first, count, rows, gram, b, p)
        count -= 1
        refactor(count, gram, factor)


@kernel
def refactor(count, gram, factor):
    """Cholesky's factor of gram + 1, from scratch."""
    for k in range(count):
        _append(k, gram, factor)


@kernel
def _append(k, gram, factor):
    """Row k of the factor; returns the squared distance of structure k to the affine span of those before."""
    left = gram[k, k] + 1
    for i in range(k):
        x = gram[k, i] + 1
        for j in range(i):
            x -= factor[k, j] * factor[i, j]
        x /= factor[i, i]
        factor[k, i] = x
        left -= x * x
    factor[k, k] = np.sqrt(max(left, 0.0))
    return left


@kernel
def _solve(count, factor, x):
    for i in range(count):
        for j in range(i):
            x[i] -= factor[i, j] * x[j]
        x[i] /= factor[i, i]
    for i in range(count - 1, -1, -1):
        for j in range(i + 1, count):
            x[i] -= factor[j, i] * x[j]
        x[i] /= factor[i, i]


@kernel
def _admit(count, rows, gram, b, p, factor, work):
    """Factor the last structure in; one that depends on the others takes the place of one of them."""
    last = count - 1
    if _append(last, gram, factor) > _DEPENDENT * (gram[last, last] + 1):
        return count
    c = work[2]
    for i in range(last):
        c[i] = gram[last, i] + 1
    _solve(last, factor, c)
    # along this way mu stays and the value rises, up to the first weight of 0
    first, length = -1, np.inf
    for i in range(last):
        if c[i] > _NOTHING and p[i] / c[i] < length:
            first, length = i, p[i] / c[i]
    for i in range(last):
        p[i] = max(p[i] - length * c[i], 0.0)
    p[last] = length
    _remove(first, count, rows, gram, b, p)
    refactor(last, gram, factor)
    return last


@kernel
def _shift(rule, place, count, gram, b, p, gains, way):
    """The best step towards a structure, away from the worst, or from the worst to it."""
    worst = -1
    for i in range(count):
        if p[i] > 0 and (worst < 0 or gains[i] < gains[worst]):
            worst = i
    towards, away = gains[place], -gains[worst]
    for i in range(count):
        towards -= p[i] * gains[i]
        away += p[i] * gains[i]
    longest = 1.0
    for i in range(count):
        way[i] = -p[i]
    way[place] += 1
    if rule == PAIRWISE:
        for i in range(count):
            way[i] = 0.0
        way[place] += 1
        way[worst] -= 1
        longest = p[worst]
    elif rule == AWAY_STEP and away > towards:
        for i in range(count):
            way[i] = p[i]
        way[worst] -= 1
        longest = p[worst] / (1 - p[worst]) if p[worst] < 1 else 0.0
    slope, bend = 0.0, 0.0
    for i in range(count):
        slope += way[i] * gains[i]
        for j in range(count):
            bend += way[i] * gram[i, j] * way[j]
    length = min(slope / bend, longest) if bend > 0 else longest
    total = 0.0
    for i in range(count):
        p[i] += length * way[i]
        p[i] = p[i] if p[i] > _NOTHING else 0.0
        total += p[i]
    for i in range(count):
        p[i] /= total


@kernel
def _drop(count, rows, gram, b, p):
    for i in range(count - 1, -1, -1):
        if p[i] == 0:
            _remove(i, count, rows, gram, b, p)
            count -= 1
    return count


@kernel
def _remove(i, count, rows, gram, b, p):
    """Close the gap that structure i leaves."""
    for j in range(i, count - 1):
        rows[j] = rows[j + 1]
        b[j] = b[j + 1]
        p[j] = p[j + 1]
        for k in range(count):
            gram[j, k] = gram[j + 1, k]
    for j in range(i, count - 1):
        for k in range(count - 1):
            gram[k, j] = gram[k, j + 1]


@kernel
def resume(seeds, rows, gram, b, p, mu, factor, work):
    """Independent ones among the first `seeds` structures, whose rows, scores and weights are set; how many."""
    count = 0
    for k in range(seeds):
        if not (p[k] > 0 and b[k] > -np.inf):
            continue
        rows[count] = rows[k]
        b[count] = b[k]
        p[count] = p[k]
        for i in range(count + 1):
            both = 0
            for d in range(rows.shape[1]):
                both += rows[i, d] & rows[count, d]
            gram[i, count] = gram[count, i] = both
        if count == 0 or _append(count, gram, factor) > _DEPENDENT * (gram[count, count] + 1):
            if count == 0:
                _append(0, gram, factor)
            count += 1
    total = 0.0
    for k in range(count):
        total += p[k]
    for k in range(count):
        p[k] /= total
    if count > 0:
        count = exact(count, rows, gram, b, p, factor, work)
        mean(count, rows, p, mu)
    return count


@kernel
def first(vertex, score, rows, gram, b, p, mu, factor):
    """All weight on one structure."""
    rows[0] = vertex
    b[0] = score
    p[0] = 1.0
    size = 0
    for d in range(vertex.size):
        size += vertex[d]
        mu[d] = vertex[d]
    gram[0, 0] = size
    _append(0, gram, factor)
    return 1
