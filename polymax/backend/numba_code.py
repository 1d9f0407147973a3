"""The parts of Numba's core with which kernels emit their own machine code."""

from numba.core import cgutils as cgutils
from numba.core.errors import TypingError as TypingError
