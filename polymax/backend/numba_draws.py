"""Random draws for Numba: each draw has a counter, from which splitmix64 makes its bits, the same on every machine.

See: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators.
"""

import numpy as np

from polymax.backend.numba_math import inline

# what is added to the counter between two draws
STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@inline
def mix(z):
    """The random bits of a counter."""
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


@inline
def choose(weights, begin, end, counter):
    """A place from begin to end - 1, with probability proportional to its weight; -1 where none has weight."""
    total = 0.0
    for i in range(begin, end):
        total += max(np.float64(weights[i]), 0.0)
    # the upper 53 bits, as a fraction
    target = total * (np.float64(mix(counter) >> np.uint64(11)) * 2.0**-53)
    chosen = -1
    for i in range(begin, end):
        if weights[i] > 0:
            # rounding may leave the target at or beyond the last sum: the last place with weight takes it
            chosen = i
            target -= np.float64(weights[i])
            if target < 0.0:
                break
    return chosen
