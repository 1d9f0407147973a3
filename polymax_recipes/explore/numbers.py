"""Numbers for JSON: short, and nothing that JSON does not have."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

from torch import Tensor


def round_digits(value: float, digits: int = 5) -> float | None:
    """A number rounded to so many significant digits; None for NaN and infinities, which JSON does not have.

    Example:
        >>> round_digits(1 / 3), round_digits(float("inf"))
        (0.33333, None)
    """
    return float(f"{value:.{digits}g}") if isfinite(value) else None


def to_lists(values: Tensor | Iterable[Any], digits: int = 5) -> list[Any]:
    """The numbers of a tensor in nested lists, rounded to so many significant digits.

    Example:
        >>> import torch
        >>> to_lists(torch.tensor([[0.25, 1 / 3]], dtype=torch.float64))
        [[0.25, 0.33333]]
    """
    found = values.detach().tolist() if isinstance(values, Tensor) else values
    return [round_digits(one, digits) if isinstance(one, float | int) else to_lists(one, digits) for one in found]
