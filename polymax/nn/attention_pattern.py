"""Which keys a query sees by its position."""

from operator import index
from typing import Any, NamedTuple

# further away than any key: sums of positions stay within 64 bits
FAR = 2**40


class Pattern(NamedTuple):
    """Query i stands at key i + offset, and sees `left` keys before and `right` keys after it; -1 is no limit."""

    left: int
    right: int
    offset: int

    def sees_all(self) -> bool:
        return self.left < 0 and self.right < 0


def pattern_of(is_causal: bool, window: tuple[int, int] | None, causal_offset: int) -> Pattern:
    """The pattern that the arguments of attention ask for, checked."""
    offset = _integer(causal_offset)
    if offset is None:
        raise TypeError(f"causal_offset must be an integer; got {causal_offset!r}")
    left, right = -1, -1
    if window is not None:
        sides = [_integer(side) for side in window] if isinstance(window, (tuple, list)) else []
        if len(sides) != 2 or any(side is None or side < -1 for side in sides):
            raise ValueError(f"window must be (left, right), integers from -1 (no limit) on; got {window!r}")
        # a side that is so far away is no limit
        left, right = (-1 if side is None or side > 2 * FAR else side for side in sides)
    if offset > FAR or offset < -FAR:
        offset = FAR if offset > 0 else -FAR
    return Pattern(left, 0 if is_causal else right, offset)


def _integer(value: Any) -> int | None:
    """An integer of Python, NumPy or torch as one of Python; None if it is none."""
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
