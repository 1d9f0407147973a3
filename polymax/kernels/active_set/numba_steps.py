"""Frank-Wolfe steps of one instance in Numba: towards a structure, away from one, or from one to another."""

from polymax.kernels.active_set.numba_factor import dot
from polymax.kernels.numba_math import kernel

ACTIVE_SET, FRANK_WOLFE, AWAY_STEP, PAIRWISE = 0, 1, 2, 3

# weights below this are rounding
NOTHING = 1e-13


@kernel
def shift(rule, place, count, gram, b, p, work):
    """The best step towards structure `place`, away from the worst, or from the worst to it; p sums to 1 after it."""
    gains, way = work[0], work[1]
    for i in range(count):
        gains[i] = b[i] - dot(gram[i], p, count)
    worst = -1
    for i in range(count):
        if p[i] > 0 and (worst < 0 or gains[i] < gains[worst]):
            worst = i
    current = dot(p, gains, count)
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
    slope, bend = dot(way, gains, count), 0.0
    for i in range(count):
        bend += way[i] * dot(gram[i], way, count)
    length = min(slope / bend, longest) if bend > 0 else longest
    total = 0.0
    for i in range(count):
        p[i] += length * way[i]
        p[i] = p[i] if p[i] > NOTHING else 0.0
        total += p[i]
    for i in range(count):
        p[i] /= total
