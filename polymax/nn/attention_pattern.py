"""Which keys a query sees by its position."""

from typing import NamedTuple


class Pattern(NamedTuple):
    """Query i stands at key i + offset, and sees `left` keys before and `right` keys after it; -1 is no limit."""

    left: int
    right: int
    offset: int

    def sees_all(self) -> bool:
        return self.left < 0 and self.right < 0


def pattern_of(is_causal: bool, window: tuple[int, int] | None, causal_offset: int) -> Pattern:
    """The pattern that the arguments of attention ask for, checked."""
    if isinstance(causal_offset, bool) or not isinstance(causal_offset, int):
        raise TypeError(f"causal_offset must be an integer; got {causal_offset!r}")
    left, right = -1, -1
    if window is not None:
        sides = tuple(window) if isinstance(window, (tuple, list)) else ()
        if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < -1 for side in sides):
            raise ValueError(f"window must be (left, right), integers from -1 (no limit) on; got {window!r}")
        left, right = sides
    return Pattern(left, 0 if is_causal else right, causal_offset)
