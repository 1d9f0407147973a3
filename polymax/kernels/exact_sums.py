"""Sums of numbers so large that plain sums would lose significant digits."""

import math

import torch
from torch import Tensor


def exact_sum(*terms: Tensor) -> Tensor:
    """Return the sum of the terms, with one rounding but for the last bit; -inf if it is not finite."""
    total, error = terms[0], torch.zeros((), dtype=terms[0].dtype, device=terms[0].device)
    for x in terms[1:]:
        both = total + x
        other = both - total
        error = error + ((total - (both - other)) + (x - other))
        total = both
    found = total + error
    # potentials of unreachable nodes are infinite, too
    return torch.where(found.isfinite(), found, -math.inf)


def exact_total(*terms: Tensor) -> Tensor:
    """Return the sum of all entries of the terms along the last dimension."""
    high, low = halves(terms)
    return torch.stack([t.sum(-1) for t in high]).sum(0) + torch.stack([t.sum(-1) for t in low]).sum(0)


def halves(terms: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Split the terms into two: multiples of a power of 2 so large that their sums are exact, and the remainders."""
    finite = [torch.where(x.isfinite(), x, 0) for x in terms]
    top = sum((2 * x.numel() * x.abs().amax() for x in finite if x.numel()), finite[0].new_zeros(()))
    # adding 1.5 times the power rounds to its last digit
    unit = 1.5 * torch.exp2(torch.log2(torch.where(top > 0, top, 1)).ceil() + 1)
    high = tuple((x + unit) - unit if bool(unit.isfinite()) else x for x in finite)
    low = tuple(x - h for x, h in zip(finite, high, strict=True))
    return tuple(torch.where(x.isfinite(), h, x) for x, h in zip(terms, high, strict=True)), low
