"""Random draws for Numba: splitmix64 maps the counter of each draw to its bits, which are equal on every machine.

See: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators.
"""

import numpy as np

from polymax.backend.numba_math import inline

# increment of the counter from draw to draw
STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@inline
def mix(z):
    """Return the random bits of a counter."""
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


@inline
def choose(weights, begin, end, counter):
    """Return an index in begin .. end - 1 with probability proportional to its weight; -1 if no entry has weight."""
    total = 0.0
    for i in range(begin, end):
        total += max(np.float64(weights[i]), 0.0)
    # the upper 53 bits, as a fraction
    target = total * (np.float64(mix(counter) >> np.uint64(11)) * 2.0**-53)
    chosen = -1
    for i in range(begin, end):
        if weights[i] > 0:
            # rounding may leave the target at or beyond the last sum: then the last index with weight is chosen
            chosen = i
            target -= np.float64(weights[i])
            if target < 0.0:
                break
    return chosen
