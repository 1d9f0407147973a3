"""The recursion for LANES instances side by side, for Numba: the value of a node is one vector, in float64.

The last row of a block stands for what is absent: -1 in `tails` and `part` finds it, reads zeros there and writes what
nobody reads. The weights of a node are normalised by their sum, so that expectations keep their mass through any
number of levels.
"""

import numpy as np

from polymax.kernels.hypergraph.numba_lanes import LANES, exp, fill, load, log, select, some, sqrt, store
from polymax.kernels.numba_math import inline, kernel

# more than the search in an interval of length 1 needs
_STEPS = 100


@kernel
def inside(first, tails, part, scores, values, taus, last, alpha):
    """Values of nodes 0 .. last; for Gini and Tsallis their thresholds, relative to the largest argument."""
    a = _room(first)
    for h in range(last + 1, len(values)):
        store(values, h, 0.0)
    for h in range(last + 1):
        count = first[h + 1] - first[h]
        top = _arguments(first, tails, part, scores, values, h, a)
        if count == 0:
            value = fill(0.0)
        elif count == 1 or alpha == np.inf:
            value = top
        elif alpha == 1.0:
            value = top + log(_weigh(a, count, alpha, top, top))
        else:
            tau = _threshold(a, count, alpha, top)
            store(taus, h, tau)
            value = top + _tsallis(a, count, alpha, top, tau)
        store(values, h, value)


@kernel
def outside(first, tails, part, scores, values, taus, expected, mu, last, alpha):
    """From the expectations of the roots those of all nodes and, summed over their edges, of the parts."""
    a = _room(first)
    mu[:] = 0.0
    for h in range(last, -1, -1):
        count = first[h + 1] - first[h]
        mass = load(expected, h)
        if count == 0 or not some(mass != 0.0):
            continue
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = mass * _inverse(_weigh(a, count, alpha, top, load(taus, h)))
        for e in range(first[h], first[h + 1]):
            # what the root does not reach may be NaN
            q = select(mass != 0.0, load(a, e - first[h]) * scale, 0.0)
            _increase(mu, part[e], q)
            _increase(expected, tails[e, 0], q)
            _increase(expected, tails[e, 1], q)


@kernel
def tangent(first, tails, part, scores, values, taus, d, slopes, expected, change, out, last, alpha):
    """Derivatives along d of the values, in `slopes`, and of what `outside` computes, in `out`."""
    a, da = _room(first), _room(first)
    out[:] = 0.0
    for h in range(last + 1):
        count = first[h + 1] - first[h]
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = _inverse(_weigh(a, count, alpha, top, load(taus, h)))
        total = fill(0.0)
        for e in range(first[h], first[h + 1]):
            p = load(a, e - first[h]) * scale
            total += select(p != 0.0, p * _sum(tails, part, d, slopes, e), 0.0)
        store(slopes, h, total)
    for h in range(last, -1, -1):
        count = first[h + 1] - first[h]
        mass, dmass = load(expected, h), load(change, h)
        # a hard maximum is locally constant
        if count == 0 or alpha == np.inf or not some(mass != 0.0):
            continue
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = _inverse(_weigh(a, count, alpha, top, load(taus, h)))
        for e in range(first[h], first[h + 1]):
            store(da, e - first[h], _sum(tails, part, d, slopes, e))
        mean = _mean(a, da, count, scale, alpha)
        for e in range(first[h], first[h + 1]):
            p = load(a, e - first[h]) * scale
            dp = select(p != 0.0, _curvature(p, alpha) * (load(da, e - first[h]) - mean), 0.0)
            q = select(mass != 0.0, p * mass, 0.0)
            dq = select(mass != 0.0, dp * mass + p * dmass, 0.0)
            _increase(out, part[e], dq)
            for side in range(2):
                _increase(expected, tails[e, side], q)
                _increase(change, tails[e, side], dq)


@kernel
def weights(first, tails, part, scores, values, taus, reached, p, last, alpha):
    """Weights of the edges of nodes that are reached from those marked in `reached`; 0 elsewhere."""
    a = _room(first)
    for e in range(first[last + 1], len(p)):
        store(p, e, 0.0)
    for h in range(last, -1, -1):
        count = first[h + 1] - first[h]
        here = load(reached, h) != 0.0
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = _inverse(_weigh(a, count, alpha, top, load(taus, h)))
        for e in range(first[h], first[h + 1]):
            x = select(here, load(a, e - first[h]) * scale, 0.0)
            store(p, e, x)
            for side in range(2):
                store(reached, tails[e, side], select(x != 0.0, 1.0, load(reached, tails[e, side])))


@inline
def _room(first):
    """Space for the edges of any node."""
    widest = 1
    for h in range(len(first) - 1):
        widest = max(widest, first[h + 1] - first[h])
    return np.empty((widest, LANES))


@inline
def _increase(array, row, x):
    store(array, row, load(array, row) + x)


@inline
def _inverse(total):
    return select(total == 0.0, 0.0, 1.0 / total)


@inline
def _finite(top):
    """What to subtract from arguments: their maximum, where that is a number."""
    return select(top - top == 0.0, top, 0.0)


@inline
def _sum(tails, part, scores, values, e):
    score = load(scores, part[e])
    # a forbidden edge stays forbidden whatever is below it
    return select(score == -np.inf, score, score + load(values, tails[e, 0]) + load(values, tails[e, 1]))


@inline
def _arguments(first, tails, part, scores, values, h, a):
    """Write the arguments of node h to a; return their maximum, NaN where one is NaN."""
    top = fill(-np.inf)
    for e in range(first[h], first[h + 1]):
        x = _sum(tails, part, scores, values, e)
        store(a, e - first[h], x)
        top = select((x > top) | (x != x), x, top)
    return top


@inline
def _weigh(a, count, alpha, top, tau):
    """Replace arguments by weights that are not normalised; return their sum."""
    shift = _finite(top)
    total = fill(0.0)
    for e in range(count):
        x = load(a, e)
        if count == 1:
            x = select(x != x, x, select(x > -np.inf, 1.0, 0.0))
        elif alpha == 1.0:
            x = exp(x - shift)
        elif alpha == np.inf:
            # the first maximal edge; all are NaN where one is
            x = select(top != top, top, select(x == top, select(total == 0.0, 1.0, 0.0), 0.0))
            x = select(top == -np.inf, 0.0, x)
        else:
            x = _power(_base(x, shift, tau, alpha), 1 / (alpha - 1))
        store(a, e, x)
        total += x
    return total


@inline
def _base(x, shift, tau, alpha):
    """((alpha - 1)(x - shift) - tau)_+, of which the weight is a power; NaN stays."""
    base = (alpha - 1) * (x - shift) - tau
    return select(base < 0.0, 0.0, base)


@inline
def _power(base, exponent):
    """base ** exponent for base >= 0; 0 at 0."""
    if exponent == 0.0:
        return select(base == 0.0, 0.0, 1.0)
    if exponent == 0.5:
        return sqrt(base)
    if exponent == 1.0:
        return base
    if exponent == 2.0:
        return base * base
    return select(base == 0.0, 0.0, select(base != base, base, exp(exponent * log(base))))


@inline
def _threshold(a, count, alpha, top):
    """The tau at which the weights sum to 1.

    Newton's method on the norm of the bases, which is convex up to alpha = 2; halvings beyond, where the slope is
    infinite at a base of 0.
    """
    q = 1 / (alpha - 1)
    shift = _finite(top)
    low = tau = fill(-1.0)
    # where there is no maximum there is nothing to search
    busy = shift == top
    high = select(busy, 0.0, low)
    for _ in range(_STEPS):
        total, slope = fill(0.0), fill(0.0)
        for e in range(count):
            base = _base(load(a, e), shift, tau, alpha)
            power = _power(base, q - 1)
            total += power * base
            slope += power
        over = total > 1.0
        low, high = select(over, tau, low), select(over, high, tau)
        step = 0.5 * (low + high)
        if alpha <= 2.0:
            newton = tau + (total - _power(total, 2 - alpha)) / slope
            step = select((newton < low) | (newton > high) | (newton != newton), step, newton)
        # a lane that has arrived stays, however long its neighbours take
        step = select(busy, step, tau)
        busy = (step - tau > 4e-16) | (tau - step > 4e-16)
        tau = step
        if not some(busy):
            break
    return tau


@inline
def _tsallis(a, count, alpha, top, tau):
    """<p, a> - Omega(p), relative to the largest argument; p^alpha is p times its base.

    Above alpha = 2 weights that should be 0 are roots of rounding errors, and their sum is not 1 to the last digit:
    total^-alpha by its first two terms sets that right.
    """
    c = 1 / (alpha * (alpha - 1))
    shift = _finite(top)
    total, mean, powers = fill(0.0), fill(0.0), fill(0.0)
    for e in range(count):
        x = load(a, e)
        base = _base(x, shift, tau, alpha)
        p = _power(base, 1 / (alpha - 1))
        total += p
        mean += select(p == 0.0, 0.0, p * (x - shift))
        powers += p * base
    return (mean - c * powers * (1.0 - (alpha - 1) * (total - 1.0))) * _inverse(total) + c


@inline
def _curvature(p, alpha):
    """p^(2 - alpha), the diagonal of the Jacobian before centering."""
    return _power(p, 2 - alpha)


@inline
def _mean(a, da, count, scale, alpha):
    total, mean = fill(0.0), fill(0.0)
    for e in range(count):
        s = _curvature(load(a, e) * scale, alpha)
        total += s
        mean += select(s == 0.0, 0.0, s * load(da, e))
    return select(total == 0.0, 0.0, mean / total)
