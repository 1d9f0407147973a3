"""The smoothed maximum of a few numbers, taken at each node of every recursion.

    value = max over p in the simplex of <a, p> - Omega(p),     Omega(p) = (sum p^alpha - 1) / (alpha (alpha - 1))
    p     = ((alpha - 1) a - tau)_+^(1 / (alpha - 1))           the weights, its gradient
    dp    = s (da - the mean of da by s),   s = p^(2 - alpha)   the change of the weights along da, on the support

alpha = 1 is Shannon's entropy, 2 is Gini's, inf is no smoothing: all weight goes to the first maximal entry. -inf gets
no weight; if all entries are -inf, so is the value. NaN, or an entry of inf, makes value and weights NaN.

The threshold tau, relative to the largest entry, is between -1 and 0. At tau the norm of the bases with exponent 1 /
(alpha - 1) is 1. Newton's method on it, from -1, is Michelot's for alpha = 2, and never passes the root for alpha <= 2.
For larger alpha the slope is infinite at a base of 0: steps that leave the bracket of tau are replaced by halvings.

One Numba implementation serves a row of numbers and lanes of rows side by side (numba_max.py); triton_max.py serves the
rows or columns of a tile. A kernel is compiled for the smoothing that it is called with.
"""

import numpy as np

# a search for tau ends when all steps are as short as CLOSE, or after ROUNDS steps
CLOSE = {np.dtype(np.float32): 1e-7, np.dtype(np.float64): 1e-15}
ROUNDS = 60
