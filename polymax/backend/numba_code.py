"""The parts of Numba's core by which kernels write machine code of their own."""

from numba.core import cgutils as cgutils
from numba.core.errors import TypingError as TypingError
