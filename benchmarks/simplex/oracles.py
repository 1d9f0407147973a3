"""The functions that are timed, once more: float64, slow, and without any kernel of polymax.

A threshold is found by bisection and becomes differentiable by one recorded Newton step; the proxes are
piecewise linear, so their gradient is that of the means of the groups which a sequential algorithm finds.
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Oracle = Callable[[Tensor], Tensor]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def entmax(alpha: float) -> Oracle:
    """With u = (alpha - 1) x, p = (u - tau)_+^(1 / (alpha - 1))."""

    def weights(u: Tensor, tau: Tensor) -> Tensor:
        return torch.relu(u - tau) ** (1 / (alpha - 1))

    def oracle(x: Tensor) -> Tensor:
        u = (alpha - 1) * x
        top = _top(u)
        return weights(u, _root(lambda u, tau: _sum(weights(u, tau)) - 1, u, top - 1, top))

    return oracle


sparsemax = entmax(2.0)


def normmax(alpha: float) -> Oracle:
    """Here q = (x - tau)_+^(1 / (alpha - 1)) is p / norm(p), so its norm is 1."""

    def direction(x: Tensor, tau: Tensor) -> Tensor:
        return torch.relu(x - tau) ** (1 / (alpha - 1))

    def oracle(x: Tensor) -> Tensor:
        top = _top(x)
        q = direction(x, _root(lambda x, tau: _sum(direction(x, tau) ** alpha) - 1, x, top - 1, top))
        return q / _sum(q)

    return oracle


def sq_pnorm_max(p: float) -> Oracle:
    """Here q = (x - tau)_+^(1 / (p - 1)) is y up to scale, and fits where sum q = norm(q)^(2 - p)."""

    def direction(x: Tensor, tau: Tensor) -> Tensor:
        return torch.relu(x - tau) ** (1 / (p - 1))

    def excess(x: Tensor, tau: Tensor) -> Tensor:
        q = direction(x, tau)
        return _sum(q) - _sum(q**p) ** ((2 - p) / p)

    def oracle(x: Tensor) -> Tensor:
        top = _top(x)
        # just under the top, where one entry is left, the excess is negative
        q = direction(x, _root(excess, x, top - 1, top - 1e-12))
        return q / _sum(q)

    return oracle


def csparsemax(upper: float) -> Oracle:
    """The weights are x - tau, cut off at 0 and upper; 1 / upper is not whole, or tau may not be unique."""

    def weights(x: Tensor, tau: Tensor) -> Tensor:
        return (x - tau).clamp(0, upper)

    def oracle(x: Tensor) -> Tensor:
        bottom = x.detach().amin(-1, keepdim=True)
        return weights(x, _root(lambda x, tau: _sum(weights(x, tau)) - 1, x, bottom - upper, _top(x)))

    return oracle


def csoftmax(share: float) -> Oracle:
    """The weights are exp(x - tau), cut off at `share` times the uniform weight."""

    def weights(x: Tensor, tau: Tensor) -> Tensor:
        return torch.exp(x - tau).clamp(max=share / x.shape[-1])

    def oracle(x: Tensor) -> Tensor:
        n = torch.tensor(float(x.shape[-1]), dtype=x.dtype)
        bottom = x.detach().amin(-1, keepdim=True) - torch.log(share / n)
        tau = _root(lambda x, tau: _sum(weights(x, tau)) - 1, x, bottom, _top(x) + torch.log(n))
        return weights(x, tau)

    return oracle


def fusedmax(strength: float) -> Oracle:
    """Sparsemax of the total-variation prox."""
    return lambda x: sparsemax(_piecewise(x, lambda row: _total_variation(row, strength)))


def oscarmax(strength: float) -> Oracle:
    """Sparsemax of the prox of the sum of pairwise maxima."""
    return lambda x: sparsemax(_piecewise(x, lambda row: _pairwise_maxima(row, strength)))


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _top(x: Tensor) -> Tensor:
    return x.detach().amax(-1, keepdim=True)


def _root(excess: Callable[[Tensor, Tensor], Tensor], x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The tau of each row where a decreasing excess is 0, differentiable in x."""
    with torch.no_grad():
        for _ in range(64):
            middle = (low + high) / 2
            positive = excess(x, middle) > 0
            low, high = torch.where(positive, middle, low), torch.where(positive, high, middle)
    tau = low.requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(excess(x.detach(), tau).sum(), tau)
    # at the root this step changes nothing but carries the implicit derivative
    return tau.detach() - excess(x, tau.detach()) / slope


def _piecewise(x: Tensor, prox: Callable[[list[float]], tuple[list[float], list[int]]]) -> Tensor:
    """The prox of every row, with the gradient of a mean over each of its groups."""
    n = x.shape[-1]
    values, groups = zip(*(prox(row) for row in x.detach().reshape(-1, n).tolist()), strict=True)
    z = torch.tensor(values, dtype=x.dtype).reshape(x.shape)
    group = torch.tensor(groups).reshape(x.shape)
    members = torch.zeros_like(z).scatter_add(-1, group, torch.ones_like(z)).clamp(min=1)
    mean = (torch.zeros_like(z).scatter_add(-1, group, x) / members).gather(-1, group)
    return z + (mean - mean.detach())


def _total_variation(y: list[float], strength: float) -> tuple[list[float], list[int]]:
    """The z with least |z - y|^2 / 2 + strength sum |z_{i+1} - z_i|, and the group of each entry.

    The derivative of the cost of the first i entries, as a function of z_i, is piecewise linear: a knot is a
    place where its slope and its offset change.

    See: Johnson 2013, A dynamic programming algorithm for the fused lasso, Section 2.
    """
    knots: deque[tuple[float, float, float]] = deque()
    lows: list[float] = []
    highs: list[float] = []

    def from_left(slope: float, offset: float, target: float) -> tuple[float, float]:
        while knots and slope * knots[0][0] + offset <= target:
            _, more, shift = knots.popleft()
            slope, offset = slope + more, offset + shift
        return slope, offset

    def from_right(slope: float, offset: float, target: float) -> tuple[float, float]:
        while knots and slope * knots[-1][0] + offset >= target:
            _, more, shift = knots.pop()
            slope, offset = slope - more, offset - shift
        return slope, offset

    for i, value in enumerate(y[:-1]):
        wall = strength if i else 0.0
        slope, offset = from_left(1.0, -value - wall, -strength)
        steep, height = from_right(1.0, -value + wall, strength)
        lows.append((-strength - offset) / slope)
        highs.append((strength - height) / steep)
        knots.appendleft((lows[-1], slope, offset + strength))
        knots.append((highs[-1], -steep, strength - height))
    slope, offset = from_left(1.0, -y[-1] - (strength if lows else 0.0), 0.0)
    z = [-offset / slope]
    for low, high in zip(reversed(lows), reversed(highs), strict=True):
        z.append(min(max(z[-1], low), high))
    z.reverse()
    groups = [0]
    for before, after in pairwise(z):
        groups.append(groups[-1] + (before != after))
    return z, groups


def _pairwise_maxima(y: list[float], strength: float) -> tuple[list[float], list[int]]:
    """The z with least |z - y|^2 / 2 + strength sum_{i<j} max(z_i, z_j), and the group of each entry.

    In decreasing order the i-th entry is the larger one of n - 1 - i pairs; what is left is isotonic
    regression, by merging neighbours that are out of order.
    """
    n = len(y)
    order = sorted(range(n), key=lambda i: -y[i])
    blocks: list[tuple[float, int]] = []
    for i, place in enumerate(order):
        total, width = y[place] - strength * (n - 1 - i), 1
        while blocks and blocks[-1][0] * width <= total * blocks[-1][1]:
            before, count = blocks.pop()
            total, width = total + before, width + count
        blocks.append((total, width))
    z, groups = [0.0] * n, [0] * n
    places = iter(order)
    for group, (total, width) in enumerate(blocks):
        for _ in range(width):
            place = next(places)
            z[place], groups[place] = total / width, group
    return z, groups
