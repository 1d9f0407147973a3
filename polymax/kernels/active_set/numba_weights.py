"""The SparseMAP loop of one instance in Numba: weights of the structures found so far, and how a new one changes them.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

A structure is the list of the parts it uses: those of the first tensor, which alone count in overlaps and in mu, then
others, then -1. Overlaps are whole numbers, so that gram is exact; the rest is in float64. Weights of independent
structures are p = x + share y, where (gram + 1) x = b, (gram + 1) y = 1 and the share makes their sum 1.

Shapes:
    held = used (k, parts), gram (k, k), b and p (k,), of which the first `count` count
    system = factor (k, k), half (3, k) and room for rotations (2, k), as numba_factor has them
    mu, mark (d,), marks all False; work (2, k)
"""

import numpy as np

from polymax.kernels.active_set.numba_factor import dot, grow, shrink, solve_above
from polymax.kernels.active_set.numba_steps import ACTIVE_SET, NOTHING, shift
from polymax.kernels.numba_math import kernel, row_dot

GOING, CONVERGED, FULL = 0, 1, 2

# a structure whose squared distance to the span of the others is below this share of its size lies in it
DEPENDENT = 1e-9


@kernel
def improve(rule, tol, total, count, taken, held, mu, system, work, mark):
    """Take a structure in: how many have weight after it, the duality gap before it, and whether that was the end.

    It is given by its list of parts, how many of them are of the first tensor, and its score less `total`, from which
    all scores are counted.
    """
    vertex, size, score = taken
    used, gram, b, p = held
    overlaps = work[0]
    current = dot(p, b, count) - row_dot(mu, mu)
    reach = 0.0
    for u in range(size):
        reach += mu[vertex[u]]
    gap = score - reach - current
    # the tolerance grows neither with what all structures share nor with what is counted off
    if not gap > tol * (1 + min(abs(current), abs(current + total))):
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
        _hold(place, vertex, size, score, overlaps, held)
        count += 1
    status = GOING
    if rule == ACTIVE_SET:
        count = _admit(count, held, system, work)
        count = exact(count, held, system, work)
        if count == place and np.any(used[place - 1] != vertex):
            # it came last and left at once: the set is what it was, and all would happen again
            status = CONVERGED
    else:
        shift(rule, place, count, gram, b, p, work)
        count = _drop(count, held)
    mean(count, held, mu)
    return count, gap, status


@kernel
def join(count, vertex, size, score, held, mark):
    """Hold one more structure, of no weight."""
    used, gram, _, _ = held
    for u in range(size):
        mark[vertex[u]] = True
    for i in range(count):
        gram[count, i] = _overlap(used[i], gram[i, i], mark)
    for u in range(size):
        mark[vertex[u]] = False
    _hold(count, vertex, size, score, gram[count], held)


@kernel
def _hold(place, vertex, size, score, overlaps, held):
    used, gram, b, p = held
    used[place] = vertex
    b[place], p[place] = score, 0.0
    for i in range(place):
        gram[i, place] = gram[place, i] = overlaps[i]
    gram[place, place] = size


@kernel
def mean(count, held, mu):
    """mu = the weighted sum of structures."""
    used, gram, _, p = held
    mu[:] = 0.0
    for i in range(count):
        parts, weight = used[i], p[i]
        for u in range(int(gram[i, i])):
            # unsigned: an index that cannot be negative needs no look
            mu[np.uint32(parts[u])] += weight


@kernel
def exact(count, held, system, work):
    """The best weights of independent structures, dropping those that would become negative."""
    p = held[3]
    factor, half, turns = system
    target = work[0]
    while True:
        share = (1 - dot(half[1], half[0], count)) / dot(half[1], half[1], count)
        for i in range(count):
            target[i] = half[0, i] + share * half[1, i]
        solve_above(count, factor, half, target)
        first, length = -1, 1.0
        for i in range(count):
            if target[i] <= NOTHING:
                fall = p[i] - target[i]
                step = p[i] / fall if fall > 0 else 0.0
                if first < 0 or step < length:
                    first, length = i, step
        if first < 0:
            p[:count] = target[:count]
            return count
        for i in range(count):
            p[i] = max(p[i] + length * (target[i] - p[i]), 0.0)
        shrink(first, count, factor, half, turns)
        _remove(first, count, held)
        count -= 1


@kernel
def resume(given, base, top, d, held, mu, system, work, mark):
    """Independent ones among structures (s, parts) of weight, with their best weights; how many.

    Their scores, which come in two parts, are counted from base + top.
    """
    seeds, seed_scores, seed_weights = given
    used, gram, b, p = held
    factor, half, _ = system
    count = 0
    for k in range(seeds.shape[0]):
        if not (seed_weights[k] > 0 and seed_scores[k, 0] > -np.inf):
            continue
        used[count] = seeds[k]
        b[count], p[count] = ((seed_scores[k, 0] - base) - top) + seed_scores[k, 1], seed_weights[k]
        size = 0
        while size < seeds.shape[1] and 0 <= seeds[k, size] < d:
            mark[seeds[k, size]] = True
            size += 1
        for i in range(count):
            gram[i, count] = gram[count, i] = _overlap(used[i], gram[i, i], mark)
        gram[count, count] = size
        for u in range(size):
            mark[used[count, u]] = False
        if grow(count, gram, b, factor, half) > DEPENDENT * (size + 1):
            count += 1
    if count > 0:
        p[:count] /= np.sum(p[:count])
        count = exact(count, held, system, work)
        mean(count, held, mu)
    return count


@kernel
def first(vertex, size, held, mu, system):
    """All weight on the best structure, from which scores are counted."""
    used, gram, b, p = held
    used[0] = vertex
    b[0], p[0] = 0.0, 1.0
    gram[0, 0] = size
    grow(0, gram, b, system[0], system[1])
    mean(1, held, mu)
    return 1


@kernel
def finish(count, held, order, used, weights, overlaps):
    """The structures that have weight, heaviest first: their parts, -1 after the last; weights; overlaps."""
    given, gram, _, p = held
    for i in range(count):
        r = i
        while r > 0 and p[order[r - 1]] < p[i]:
            order[r] = order[r - 1]
            r -= 1
        order[r] = i
    for r in range(count):
        i = order[r]
        used[r] = given[i]
        weights[r] = p[i]
        for c in range(count):
            overlaps[r, c] = gram[i, order[c]]
        overlaps[r, count:] = 0
    used[count:] = -1
    weights[count:] = 0.0
    overlaps[count:] = 0


@kernel
def _overlap(parts, size, mark):
    both = 0
    for u in range(int(size)):
        both += mark[np.uint32(parts[u])]
    return both


@kernel
def _admit(count, held, system, work):
    """Factor the last structure in; one that depends on the others takes the place of one of them."""
    _, gram, b, p = held
    factor, half, turns = system
    last = count - 1
    if grow(last, gram, b, factor, half) > DEPENDENT * (gram[last, last] + 1):
        return count
    c = work[0]
    c[:last] = factor[last, :last]
    solve_above(last, factor, half, c)
    # along this way mu stays and the value rises, up to the first weight of 0
    gone, length = -1, np.inf
    for i in range(last):
        if c[i] > NOTHING and p[i] / c[i] < length:
            gone, length = i, p[i] / c[i]
    for i in range(last):
        p[i] = max(p[i] - length * c[i], 0.0)
    p[last] = length
    shrink(gone, last, factor, half, turns)
    _remove(gone, count, held)
    grow(last - 1, gram, b, factor, half)
    return last


@kernel
def _drop(count, held):
    for i in range(count - 1, -1, -1):
        if held[3][i] == 0:
            _remove(i, count, held)
            count -= 1
    return count


@kernel
def _remove(i, count, held):
    """Close the gap that structure i leaves."""
    used, gram, b, p = held
    for j in range(i, count - 1):
        used[j] = used[j + 1]
        b[j], p[j] = b[j + 1], p[j + 1]
        gram[j, :count] = gram[j + 1, :count]
    for k in range(count - 1):
        for j in range(i, count - 1):
            gram[k, j] = gram[k, j + 1]
