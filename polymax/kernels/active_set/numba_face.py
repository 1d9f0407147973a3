"""The face of the polytope that mu lies on, in Numba: structures of weight 0 that determine how mu moves.

The last structures that an active set finds have weights as small as rounding errors, and some structures weigh so
little that the gap closes without them. They do not change mu, but each is a direction in which mu can move. So MAP is
called with points nudged off mu, in directions along which the found structures do not differ. A new structure with the
same score as the found ones adds a direction.
"""

import numpy as np

from polymax.backend.numba_math import inline, row_dot
from polymax.kernels.active_set.numba_factor import dot, grow, solve_above
from polymax.kernels.active_set.numba_search import ask
from polymax.kernels.active_set.numba_weights import compare, hold
from polymax.kernels.active_set.tolerances import APART, DEPENDENT, NUDGE, TIED


@inline
def span_face(best, problem, top, count, held, mu, system, work, mark, vertex, nudge):
    """Add structures of weight 0 until they span the face; return their number, or -1 if there is no room.

    Scores of structures are differences to `top`.
    """
    used, gram, b, p = held
    w, point, overlaps = nudge[0], nudge[1], work[0]
    current = dot(p, b, count) - row_dot(mu, mu)
    level = direction(count, held, system, work, w)
    side, failed = 1.0, 0
    while failed < 2:
        for u in range(mu.size):
            point[u] = mu[u] - side * NUDGE * w[u]
        score = ask(best, problem, point, vertex)
        size = problem[6][0, 1]
        reach, along = 0.0, 0.0
        for u in range(size):
            reach += mu[vertex[u]]
            along += w[vertex[u]]
        tied = (score - top) - reach - current >= -TIED * (1 + abs(current))
        if tied and side * (along - level) > APART:
            if count == b.size:
                return -1
            compare(vertex, size, count, used, gram, overlaps, mark)
            hold(count, vertex, size, score - top, overlaps, held)
            if grow(count, gram, b, system[0], system[1]) > DEPENDENT * (size + 1):
                count += 1
                level = direction(count, held, system, work, w)
                failed = 0
                continue
        failed += 1
        side = -side
    return count


@inline
def direction(count, held, system, work, w):
    """Write a direction w orthogonal to all differences of structures; return its inner product with each structure.

    It depends on the number of structures: after a few structures the remainder of an old direction would be used up.
    """
    used, gram = held[0], held[1]
    factor, half = system[0], system[1]
    x, y = work[0], work[1]
    _scatter(count, w)
    # a second pass removes the rounding of the first
    for _ in range(2):
        for i in range(count):
            along = 0.0
            for u in range(int(gram[i, i])):
                along += w[used[i, u]]
            x[i] = (along - dot(factor[i], x, i)) * half[2, i]
            y[i] = half[1, i]
        solve_above(count, factor, half, x)
        solve_above(count, factor, half, y)
        total, ones = 0.0, 0.0
        for i in range(count):
            total += x[i]
            ones += y[i]
        share = total / ones
        for i in range(count):
            for u in range(int(gram[i, i])):
                w[used[i, u]] -= x[i] - share * y[i]
    level = 0.0
    for u in range(int(gram[0, 0])):
        level += w[used[0, u]]
    return level


@inline
def _scatter(seed, w):
    """Fill w with pseudorandom numbers between -1 and 1 that depend on the seed only."""
    state = np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
    for u in range(w.size):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        w[u] = np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-52 - 1.0
