"""Float32 numbers with a separate exponent, for Numba: sums of exponentials without overflow or underflow.

A number is m 2^e with 1 <= m < 2 and an integer e, or 0. A sum shifts exponents and takes no logarithm. Arrays of
float32 that hold both store the integer in their bits.
"""

import numpy as np

from polymax.backend.numba_math import _bits as bits
from polymax.backend.numba_math import _fma, inline
from polymax.backend.numba_math import _from_bits as from_bits

INT, REAL = np.int32, np.float32
ZERO, ONE, FORBIDDEN = REAL(0), REAL(1), REAL(-np.inf)
# the exponent of 0, below the exponent of every number; sums of scores stay within a quarter of it
LOWEST = INT(-(1 << 30))
WIDEST, LARGEST = float(1 << 28), float(1 << 20)
# log2(e) in two parts: the product of the first with a score, less an integer, has only one rounding
_LOG2_E = REAL(np.log2(np.e))
_LOG2_E_REST = REAL(np.log2(np.e) - float(_LOG2_E))
# 1.5 * 2^23: adding it rounds to an integer, which then lies in the last bits
_ROUND = REAL(12582912)
_ROUND_BITS = INT(0x4B400000)
_ONE_BITS, _MANTISSA = INT(0x3F800000), INT(0x007FFFFF)


@inline
def exponential(score):
    """Return exp(score) as a factor between 2^-0.5 and 2^0.5, or 0, and an exponent."""
    x = ZERO if score == FORBIDDEN else score
    # 2^k 2^f with |f| <= 1/2, the second factor by a minimax polynomial
    k = x * _LOG2_E + _ROUND
    f = _fma(x, _LOG2_E_REST, _fma(x, _LOG2_E, -(k - _ROUND)))
    series = _fma(f, REAL(1.5353362e-4), REAL(1.3398875e-3))
    series = _fma(f, series, REAL(9.6184369e-3))
    series = _fma(f, series, REAL(5.5503324e-2))
    series = _fma(f, series, REAL(2.4022648e-1))
    series = _fma(f, series, REAL(6.9314718e-1))
    series = _fma(f, series, ONE)
    return ZERO if score == FORBIDDEN else series, INT(bits(k) - _ROUND_BITS)


@inline
def normal(number, power):
    """Return number 2^power with a mantissa between 1 and 2."""
    whole = bits(number)
    exponent = INT(INT(INT(whole >> INT(23)) - INT(127)) + power)
    exists = number > ZERO
    return from_bits(INT(INT(whole & _MANTISSA) | _ONE_BITS)) if exists else ZERO, exponent if exists else LOWEST


@inline
def shifted(number, shift):
    """Return number 2^shift for shift <= 0; 0 if the result is below the normal numbers."""
    shift = shift if shift > INT(-127) else INT(-127)
    return number * from_bits(INT(INT(shift + INT(127)) << INT(23)))
