"""Weights of the structures of one instance, in Numba, and their changes as structures are added and removed.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

A structure is the list of the parts it uses: those of the first tensor, which alone count in overlaps and in mu, then
those of other tensors, then -1. Overlaps are integers, so that gram is exact; the rest is in float64. Weights of
independent structures are p = x + share y, with (gram + 1) x = b, (gram + 1) y = 1 and the share that makes their sum
1.

Shapes:
    held = used (k, parts), gram (k, k), b and p (k,), of which the first `count` are in use
    system = factor (k, k), half (3, k) and room for rotations (2, k), as in numba_factor.py
    mu (d,); mark (d,), all False between calls, or (0,) if equal parts have equal places in all lists; work (2, k)
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.active_set.numba_factor import dot, grow, shrink, solve_above
from polymax.kernels.active_set.tolerances import DEPENDENT, NOTHING


@inline
def compare(vertex, size, count, used, gram, overlaps, mark):
    """Write the overlaps of a structure with those held; return the place of the last equal structure, -1 if there is
    none.

    Without a `mark`, parts that two lists share have the same place in both.
    """
    place = np.int64(-1)
    if mark.size == 0:
        for i in range(count):
            overlaps[i] = _shared(vertex[:size], used[i])
            if overlaps[i] == size and gram[i, i] == size:
                place = i
        return place
    for u in range(size):
        mark[vertex[u]] = True
    for i in range(count):
        parts, both = used[i], 0
        for u in range(int(gram[i, i])):
            # unsigned: such an index needs no check for negative values
            both += mark[np.uint32(parts[u])]
        overlaps[i] = both
        if both == size and gram[i, i] == size:
            place = i
    for u in range(size):
        mark[vertex[u]] = False
    return place


@inline
def _shared(parts, others):
    """Return the number of places in which two lists have the same part."""
    # the counter has the width of the parts, so that the loop vectorises
    both = np.int32(0)
    for u in range(parts.size):
        both = np.int32(both + (parts[u] == others[u]))
    return both


@inline
def hold(place, vertex, size, score, overlaps, held):
    """Write a structure, of weight 0, to the place after the last."""
    used, gram, b, p = held
    for u in range(vertex.size):
        used[place, u] = vertex[u]
    b[place], p[place] = score, 0.0
    for i in range(place):
        gram[i, place] = gram[place, i] = overlaps[i]
    gram[place, place] = size


@inline
def mean(count, held, mu, choices):
    """Write mu, the weighted sum of structures; for `choices` see numba_search.py."""
    used, gram, _, p = held
    if choices == 2:
        _mean_of_two(count, used, int(gram[0, 0]), p, mu)
        return
    for u in range(mu.size):
        mu[u] = 0.0
    for i in range(count):
        parts, weight = used[i], p[i]
        for u in range(int(gram[i, i])):
            mu[np.uint32(parts[u])] += weight


@inline
def _mean_of_two(count, used, size, p, mu):
    """Write mu if place u of a list holds part 2 u or 2 u + 1: the odd parts in vectors, the even ones as their
    complement.
    """
    total = 0.0
    for u in range(size):
        mu[u] = 0.0
    for i in range(count):
        parts, weight = used[i], p[i]
        total += weight
        for u in range(size):
            mu[u] += weight if parts[u] & 1 else 0.0
    # from the last place on, so that no entry is overwritten before it is read
    for u in range(size - 1, -1, -1):
        odd = mu[u]
        mu[2 * u], mu[2 * u + 1] = total - odd, odd


@inline
def exact_weights(count, held, system, work):
    """Write the best weights of independent structures, dropping those that would become negative; return how many
    remain.
    """
    p = held[3]
    factor, half, rotations = system
    target = work[0]
    while True:
        share = (1 - dot(half[1], half[0], count)) / dot(half[1], half[1], count)
        for i in range(count):
            target[i] = half[0, i] + share * half[1, i]
        solve_above(count, factor, half, target)
        first, length = np.int64(-1), 1.0
        for i in range(count):
            if target[i] <= NOTHING:
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
        shrink(first, count, factor, half, rotations)
        remove(first, count, held)
        count -= 1


@inline
def admit(count, held, system, work):
    """Add the last structure to the factor; a structure that depends on the others replaces one of them."""
    _, gram, b, p = held
    factor, half, rotations = system
    last = count - 1
    if grow(last, gram, b, factor, half) > DEPENDENT * (gram[last, last] + 1):
        return count
    c = work[0]
    for i in range(last):
        c[i] = factor[last, i]
    solve_above(last, factor, half, c)
    # along this direction mu stays and the value rises, up to the first weight of 0
    gone, length = np.int64(-1), np.inf
    for i in range(last):
        if c[i] > NOTHING and p[i] / c[i] < length:
            gone, length = i, p[i] / c[i]
    for i in range(last):
        p[i] = max(p[i] - length * c[i], 0.0)
    p[last] = length
    shrink(gone, last, factor, half, rotations)
    remove(gone, count, held)
    grow(last - 1, gram, b, factor, half)
    return last


@inline
def remove(i, count, held):
    """Remove structure i, and move the structures after it forward by one place."""
    used, gram, b, p = held
    for j in range(i, count - 1):
        for u in range(used.shape[1]):
            used[j, u] = used[j + 1, u]
        b[j], p[j] = b[j + 1], p[j + 1]
        for k in range(count):
            gram[j, k] = gram[j + 1, k]
    for k in range(count - 1):
        for j in range(i, count - 1):
            gram[k, j] = gram[k, j + 1]


@inline
def resume(seeds, seed_scores, seed_weights, base, top, held, mu, system, work, mark, choices):
    """Hold the independent structures among (s, parts) that have weight, with their best weights; return their number.

    Their scores (s, 2), each the sum of two numbers, are taken less base + top.
    """
    gram, b, p = held[1], held[2], held[3]
    overlaps = work[0]
    count, total = np.int64(0), 0.0
    for k in range(seeds.shape[0]):
        if not (seed_weights[k] > 0 and seed_scores[k, 0] > -np.inf):
            continue
        size = 0
        while size < seeds.shape[1] and 0 <= seeds[k, size] < mu.size:
            size += 1
        score = ((seed_scores[k, 0] - base) - top) + seed_scores[k, 1]
        compare(seeds[k], size, count, held[0], gram, overlaps, mark)
        hold(count, seeds[k], size, score, overlaps, held)
        p[count] = seed_weights[k]
        if grow(count, gram, b, system[0], system[1]) > DEPENDENT * (size + 1):
            total += p[count]
            count += 1
    if count > 0:
        for i in range(count):
            p[i] /= total
        count = exact_weights(count, held, system, work)
        mean(count, held, mu, choices)
    return count
