"""Frank-Wolfe steps of one instance in Numba: towards a structure, away from one, or from one to another."""

from polymax.backend.numba_math import inline
from polymax.kernels.active_set.numba_factor import dot
from polymax.kernels.active_set.tolerances import NOTHING

FRANK_WOLFE, AWAY_STEP, PAIRWISE = 1, 2, 3


@inline
def shift(rule, place, count, gram, b, p, work):
    """Take the best step: towards structure `place`, away from the worst, or from it to `place`; p keeps the sum 1."""
    gains, way = work[0], work[1]
    for i in range(count):
        gains[i] = b[i] - dot(gram[i], p, count)
    worst = -1
    for i in range(count):
        if p[i] > 0 and (worst < 0 or gains[i] < gains[worst]):
            worst = i
    current = dot(p, gains, count)
    away = rule == AWAY_STEP and current - gains[worst] > gains[place] - current
    for i in range(count):
        way[i] = 0.0 if rule == PAIRWISE else p[i] if away else -p[i]
    longest = 1.0
    if not away:
        way[place] += 1
    if away or rule == PAIRWISE:
        way[worst] -= 1
        longest = p[worst]
    if away:
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
