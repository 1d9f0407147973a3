"""The SparseMAP loop of one instance in Numba: weights of the structures found so far, and how a new one changes them.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

A structure is the list of the parts it uses, and overlaps are whole numbers, so that gram is exact. The rest is in
float64. Weights of independent structures are p = x + share y, where (gram + 1) x = b, (gram + 1) y = 1 and the share
makes their sum 1; Cholesky's factor of gram + 1 grows and shrinks with the list.
"""

import numpy as np

from polymax.kernels.numba_math import add, kernel

ACTIVE_SET, FRANK_WOLFE, AWAY_STEP, PAIRWISE = 0, 1, 2, 3
GOING, CONVERGED, FULL = 0, 1, 2

# weights below this are rounding
_NOTHING = 1e-13
# a structure whose squared distance to the span of the others is below this share of its size lies in it
_DEPENDENT = 1e-9


@kernel
def improve(rule, tol, count, vertex, size, score, used, gram, b, p, mu, factor, work, mark):
    """Take a structure in: how many have weight after it, the duality gap before it, and whether that was the end.

    Shapes:
        vertex (parts,), the first `size` of it in use; used (k, parts); gram, factor (k, k); b, p (k,)
        mu, mark (d,), marks all False; work (4, k)
    """
    gains, overlaps = work[0], work[1]
    current = 0.0
    for i in range(count):
        gains[i] = b[i] - _dot(gram[i], p, count)
        current += p[i] * gains[i]
    reach = 0.0
    for u in range(size):
        reach += mu[vertex[u]]
    gap = score - reach - current
    if not gap > tol * (1 + abs(current)):
        return count, gap, CONVERGED
    for u in range(size):
        mark[vertex[u]] = True
    place = -1
    for i in range(count):
        overlaps[i] = _overlap(used[i], gram[i, i], mark)
        if overlaps[i] == size and gram[i, i] == size:
            place = i
    for u in range(size):
        mark[vertex[u]] = False
    if place >= 0 and rule == ACTIVE_SET:
        # a structure that has weight cannot do better than the exact weights, but for rounding
        return count, gap, CONVERGED
    if place < 0:
        if count == b.size:
            return count, gap, FULL
        place = count
        used[place, :size] = vertex[:size]
        b[place] = score
        p[place] = 0.0
        gains[place] = score - reach
        for i in range(count):
            gram[i, place] = gram[place, i] = overlaps[i]
        gram[place, place] = size
        count += 1
    if rule == ACTIVE_SET:
        count = _admit(count, used, gram, b, p, factor, work)
        count = exact(count, used, gram, b, p, factor, work)
    else:
        _shift(rule, place, count, gram, p, gains, work[2])
        count = _drop(count, used, gram, b, p)
    mean(count, used, gram, p, mu)
    return count, gap, GOING


@kernel
def mean(count, used, gram, p, mu):
    """mu = the weighted sum of structures."""
    mu[:] = 0.0
    for i in range(count):
        for u in range(int(gram[i, i])):
            mu[used[i, u]] += p[i]


@kernel
def exact(count, used, gram, b, p, factor, work):
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
        _shrink(first, count, factor)
        _remove(first, count, used, gram, b, p)
        count -= 1


@kernel
def resume(seeds, used, gram, b, p, mu, factor, work, mark):
    """Independent ones among the first `seeds` structures; how many. Their parts end at -1, b and p are set."""
    count = 0
    for k in range(seeds):
        if not (p[k] > 0 and b[k] > -np.inf):
            continue
        size = 0
        while size < used.shape[1] and used[k, size] >= 0:
            used[count, size] = used[k, size]
            mark[used[k, size]] = True
            size += 1
        b[count], p[count] = b[k], p[k]
        for i in range(count):
            gram[i, count] = gram[count, i] = _overlap(used[i], gram[i, i], mark)
        gram[count, count] = size
        for u in range(size):
            mark[used[count, u]] = False
        if _grow(count, gram, factor) > _DEPENDENT * (size + 1):
            count += 1
    total = 0.0
    for k in range(count):
        total += p[k]
    for k in range(count):
        p[k] /= total
    if count > 0:
        count = exact(count, used, gram, b, p, factor, work)
        mean(count, used, gram, p, mu)
    return count


@kernel
def first(vertex, size, score, used, gram, b, p, mu, factor):
    """All weight on one structure."""
    used[0, :size] = vertex[:size]
    b[0], p[0] = score, 1.0
    gram[0, 0] = size
    _grow(0, gram, factor)
    mean(1, used, gram, p, mu)
    return 1


@kernel
def finish(count, used, gram, p, overlaps):
    """Nothing but the structures that have weight: -1 after the parts of each, and after the last; their overlaps."""
    for i in range(count):
        for j in range(count):
            overlaps[i, j] = gram[i, j]
    for i in range(p.size):
        begin = int(gram[i, i]) if i < count else 0
        used[i, begin:] = -1
    p[count:] = 0.0


@kernel
def _overlap(parts, size, mark):
    both = 0
    for u in range(int(size)):
        both += mark[parts[u]]
    return both


@kernel
def _dot(x, y, count):
    total = 0.0
    for i in range(count):
        total = add(total, x[i] * y[i])
    return total


@kernel
def _grow(k, gram, factor):
    """Row k of the factor; returns the squared distance of structure k to the affine span of those before."""
    row = factor[k]
    left = gram[k, k] + 1
    for i in range(k):
        row[i] = (gram[k, i] + 1 - _dot(row, factor[i], i)) / factor[i, i]
        left -= row[i] * row[i]
    row[k] = np.sqrt(max(left, 0.0))
    return left


@kernel
def _shrink(r, count, factor):
    """The factor without structure r: rows close up, and rotations of columns make it triangular again."""
    for i in range(r, count - 1):
        factor[i, : i + 2] = factor[i + 1, : i + 2]
    for c in range(r, count - 1):
        length = np.hypot(factor[c, c], factor[c, c + 1])
        cos, sin = factor[c, c] / length, factor[c, c + 1] / length
        factor[c, c] = length
        for i in range(c + 1, count - 1):
            x, y = factor[i, c], factor[i, c + 1]
            factor[i, c] = cos * x + sin * y
            factor[i, c + 1] = cos * y - sin * x


@kernel
def _solve(count, factor, x):
    for i in range(count):
        x[i] = (x[i] - _dot(factor[i], x, i)) / factor[i, i]
    for i in range(count - 1, -1, -1):
        x[i] /= factor[i, i]
        for j in range(i):
            x[j] -= factor[i, j] * x[i]


@kernel
def _admit(count, used, gram, b, p, factor, work):
    """Factor the last structure in; one that depends on the others takes the place of one of them."""
    last = count - 1
    if _grow(last, gram, factor) > _DEPENDENT * (gram[last, last] + 1):
        return count
    c = work[2]
    for i in range(last):
        c[i] = gram[last, i] + 1
    _solve(last, factor, c)
    # along this way mu stays and the value rises, up to the first weight of 0
    gone, length = -1, np.inf
    for i in range(last):
        if c[i] > _NOTHING and p[i] / c[i] < length:
            gone, length = i, p[i] / c[i]
    for i in range(last):
        p[i] = max(p[i] - length * c[i], 0.0)
    p[last] = length
    _remove(gone, count, used, gram, b, p)
    for k in range(gone, last):
        _grow(k, gram, factor)
    return last


@kernel
def _shift(rule, place, count, gram, p, gains, way):
    """The best step towards a structure, away from the worst, or from the worst to it."""
    worst = -1
    for i in range(count):
        if p[i] > 0 and (worst < 0 or gains[i] < gains[worst]):
            worst = i
    current = _dot(p, gains, count)
    longest = 1.0
    for i in range(count):
        way[i] = -p[i]
    way[place] += 1
    if rule == PAIRWISE:
        way[:count] = 0.0
        way[place] += 1
        way[worst] -= 1
        longest = p[worst]
    elif rule == AWAY_STEP and current - gains[worst] > gains[place] - current:
        way[:count] = p[:count]
        way[worst] -= 1
        longest = p[worst] / (1 - p[worst]) if p[worst] < 1 else 0.0
    slope, bend = _dot(way, gains, count), 0.0
    for i in range(count):
        bend += way[i] * _dot(gram[i], way, count)
    length = min(slope / bend, longest) if bend > 0 else longest
    total = 0.0
    for i in range(count):
        p[i] += length * way[i]
        p[i] = p[i] if p[i] > _NOTHING else 0.0
        total += p[i]
    for i in range(count):
        p[i] /= total


@kernel
def _drop(count, used, gram, b, p):
    for i in range(count - 1, -1, -1):
        if p[i] == 0:
            _remove(i, count, used, gram, b, p)
            count -= 1
    return count


@kernel
def _remove(i, count, used, gram, b, p):
    """Close the gap that structure i leaves."""
    for j in range(i, count - 1):
        used[j] = used[j + 1]
        b[j], p[j] = b[j + 1], p[j + 1]
        gram[j, :count] = gram[j + 1, :count]
    for k in range(count - 1):
        for j in range(i, count - 1):
            gram[k, j] = gram[k, j + 1]
