"""The smoothed maximum of a few numbers, of which every recursion takes one at each of its nodes.

    value = max over p in the simplex of <a, p> - Omega(p),     Omega(p) = (sum p^alpha - 1) / (alpha (alpha - 1))
    p     = ((alpha - 1) a - tau)_+^(1 / (alpha - 1))           the weights, its gradient
    dp    = s (da - the mean of da by s),   s = p^(2 - alpha)   the change of the weights along da, on the support

alpha = 1 is Shannon's entropy, 2 is Gini's, inf is no smoothing: all weight goes to the first maximal entry. -inf gets
no weight; where all entries are -inf, so is the value. NaN, or an entry of inf, makes value and weights NaN.

The threshold tau, counted from the largest entry, is between -1 and 0. The norm of the bases with exponent
1 / (alpha - 1) is 1 there: Newton's method on it, from -1, is Michelot's for alpha = 2, and up to there never goes too
far. Beyond, the slope is infinite at a base of 0: steps that leave what is known of tau are replaced by halvings.

The same text in Numba serves a row of numbers and lanes of them side by side (numba_max.py); in Triton, the rows or
columns of a tile (triton_max.py). A kernel is compiled for the smoothing that it is called with.
"""

import numpy as np

# a search for tau ends when all steps are as short as this, or after so many of them
CLOSE = {np.dtype(np.float32): 1e-7, np.dtype(np.float64): 1e-15}
ROUNDS = 60
