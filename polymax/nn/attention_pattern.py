"""The keys that a query sees by its position."""

from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

# further away than any key: sums of positions stay within 64 bits
FAR = 2**40


class Pattern(NamedTuple):
    """Query i stands at key i + offset, and sees `left` keys before and `right` keys after it; -1 means all."""

    left: int
    right: int
    offset: int

    def sees_all(self) -> bool:
        return self.left < 0 and self.right < 0

    def is_plain_causal(self) -> bool:
        return self == (-1, 0, 0)

    def bounds(self, positions: Tensor, keys: Any) -> tuple[Tensor, Tensor]:
        """Return the first key that a query at each position sees, and the end of its range, of `keys` keys."""
        low = positions - self.left if self.left >= 0 else torch.zeros_like(positions)
        high = positions + self.right + 1 if self.right >= 0 else torch.zeros_like(positions) + keys
        if isinstance(keys, Tensor):
            low, high = (torch.minimum(t.clamp(min=0), keys) for t in (low, high))
        else:
            low, high = low.clamp(0, keys), high.clamp(0, keys)
        return low, torch.maximum(low, high)


def pattern_of(is_causal: bool, window: tuple[int, int] | None, causal_offset: int) -> Pattern:
    """Return the pattern of the checked arguments of attention."""
    offset = _integer(causal_offset)
    if offset is None:
        raise TypeError(f"causal_offset must be an integer; got {causal_offset!r}")
    left, right = -1, -1
    if window is not None:
        sides = [_integer(side) for side in window] if isinstance(window, (tuple, list)) else []
        if len(sides) != 2 or any(side is None or side < -1 for side in sides):
            raise ValueError(f"window must be (left, right), integers from -1 (no limit) on; got {window!r}")
        # a side this far away hides no key
        left, right = (-1 if side is None or side > 2 * FAR else side for side in sides)
    if offset > FAR or offset < -FAR:
        offset = FAR if offset > 0 else -FAR
    return Pattern(left, 0 if is_causal else right, offset)


def visible_keys(pattern: Pattern, queries: int, keys: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Return the number of keys that each query sees and the mask allows.

    Shapes: mask broadcasts to (*batch, queries, keys), bool (True = keep) or float (-inf = hidden); the counts
    broadcast to (*batch, queries)
    """
    low, high = pattern.bounds(torch.arange(queries, device=device) + pattern.offset, keys)
    if mask is None:
        return high - low
    keep = mask if mask.dtype == torch.bool else mask > -torch.inf
    keep = keep.expand(*keep.shape[:-1], keys)
    if keep.dim() == 1:
        keep = keep[None]
    if pattern.sees_all():
        return keep.sum(-1)
    # the number of allowed keys before each key
    before = torch.nn.functional.pad(keep.long().cumsum(-1), (1, 0))
    before = before.expand(*before.shape[:-2], queries, keys + 1)
    at = (t[:, None].expand(*before.shape[:-1], 1) for t in (low, high))
    first, last = (before.gather(-1, i).squeeze(-1) for i in at)
    return last - first


def _integer(value: Any) -> int | None:
    """An integer of Python, NumPy or torch as a Python integer; None for other objects."""
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
