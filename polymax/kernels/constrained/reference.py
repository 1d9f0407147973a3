"""The nearest point that satisfies linear constraints, in torch: the prices of all rows at once, by Newton's method.

Rows are a dense matrix here. Each round moves every price part of the way to the value that would satisfy its row
alone, which no kink can stop. It then takes Newton's step, or the part of that step with the least dual value.
"""

import torch
from torch import Tensor

# largest violation of a row at the end, relative to the largest score
TOLERANCE = 1e-12
# multiple of the identity in Newton's systems, times the violation: they are singular if rows depend on each other
DAMPING = 1e-3
# FLAT: larger scores are approached from scaled-down scores
# ROUGH: violation allowed at the scaled-down scores
# FEW: rounds at the scaled-down scores
FLAT, ROUGH, FEW = 2.0, 1e-3, 10
# GAIN: a round is idle if the violation stays above this share of the one before
# IDLE: idle rounds that end the search
# NEARLY: if the violation is at most this many times the goal
GAIN, IDLE, NEARLY = 0.9, 4, 1e3


def constrained(
    x: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, columns: Tensor, signs: Tensor, offset: Tensor,
    least: Tensor, most: Tensor, start: Tensor, rounds: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    count = len(x)
    done = torch.zeros(count, dtype=torch.long, device=x.device)
    if not count or not start.shape[1]:
        return (x / weight).clamp(lower, upper), start.clone(), x.new_zeros(count), done
    problem = _Rows(dense(columns, signs, x.shape[1], count), weight, lower, upper, _each(offset, count))
    top = torch.where(lower < upper, x.abs(), 0).amax(1)
    cold = (start == 0).all(1)
    halvings = torch.where(cold, torch.log2(top.clamp(min=1e-300) / FLAT).ceil().clamp(min=0), 0)
    tau = start
    for stage in range(int(halvings.max()), -1, -1):
        scale = torch.exp2(-halvings.clamp(max=stage)).unsqueeze(1)
        ends = least * scale, most * scale
        last = halvings >= stage if stage else torch.ones_like(cold)
        goal = TOLERANCE * (1 + top) if not stage else torch.where(last, ROUGH, torch.inf)
        tau, turns = problem.descend(x * scale, tau.clamp(*ends), ends, goal, rounds if not stage else FEW)
        done = done + turns
        if stage:
            tau = torch.where(last.unsqueeze(1), 2 * tau, tau)
    mu, missed = problem.at(x, tau, (least, most))
    return mu, tau, missed.abs().amax(1), done


def constrained_response(
    free: Tensor, tight: Tensor, weight: Tensor, columns: Tensor, signs: Tensor, g: Tensor
) -> Tensor:
    moved = torch.where(free, g, 0)
    if not columns.shape[1] or not len(g):
        return moved / weight
    a = torch.where(tight.unsqueeze(-1), dense(columns, signs, g.shape[1], len(g)), 0)
    spread = torch.where(free, 1 / weight, 0)
    y = _solved(_gram(a, spread), _product(a, spread * g))
    return spread * (g - _product(a.mT, y))


def dense(columns: Tensor, signs: Tensor, n: int, count: int) -> Tensor:
    """Return rows (B, R, n) from lists of their variables."""
    a = torch.zeros(*columns.shape[:2], n + 1, dtype=torch.float64, device=columns.device)
    # sums of whole numbers are exact in any order
    a = a.scatter_add(-1, torch.where(columns < 0, n, columns), signs.double())[..., :-1]
    return _each(a, count)


def _each(t: Tensor, count: int) -> Tensor:
    return t if len(t) == count else t.repeat_interleave(count // len(t), 0)


class _Rows:
    """Constraint rows of a batch; a (B, R, n)."""

    def __init__(self, a: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, offset: Tensor) -> None:
        self.a, self.weight, self.lower, self.upper, self.offset = a, weight, lower, upper, offset
        # a variable moves with all of its rows at once
        self.degree = a.abs().sum(1).amax(-1).clamp(min=1).unsqueeze(1)

    def at(self, x: Tensor, tau: Tensor, ends: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return mu, and by how much rows are exceeded, 0 if the price is at the end that stops it."""
        mu = self._mu(x - _product(self.a.mT, tau))
        missed = _product(self.a, mu) - self.offset
        stuck = ((tau <= ends[0]) & (missed < 0)) | ((tau >= ends[1]) & (missed > 0))
        return mu, torch.where(stuck, 0, missed)

    def descend(
        self, x: Tensor, tau: Tensor, ends: tuple[Tensor, Tensor], goal: Tensor, rounds: int
    ) -> tuple[Tensor, Tensor]:
        """Return better prices, and the number of rounds, (B,)."""
        turns = torch.zeros(len(x), dtype=torch.long, device=x.device)
        lengths = torch.exp2(-torch.arange(16, dtype=torch.float64, device=x.device)).reshape(-1, 1, 1)
        before, idle = torch.full_like(goal, torch.inf), torch.zeros_like(turns)
        for _ in range(rounds):
            mu, missed = self.at(x, tau, ends)
            miss = missed.abs().amax(1)
            idle = torch.where(miss > GAIN * before, idle + 1, 0)
            before = torch.minimum(before, miss)
            running = (miss > goal) & ~((idle > IDLE) & (miss < NEARLY * goal))
            if not bool(running.any()):
                break
            turns = turns + running
            alone = (tau + self._alone(x, tau, ends) / self.degree).clamp(*ends)
            tau = torch.where(running.unsqueeze(1), alone, tau)
            t = x - _product(self.a.mT, tau)
            mu, missed = self.at(x, tau, ends)
            miss = missed.abs().amax(1)
            held = (missed != 0) | ((tau > ends[0]) & (tau < ends[1]))
            spread = torch.where((mu > self.lower) & (mu < self.upper), 1 / self.weight, 0)
            gram = _gram(torch.where(held.unsqueeze(-1), self.a, 0), spread)
            # rows without a free variable have no curvature, and are left out of Newton's step
            bare = gram.diagonal(dim1=1, dim2=2) == 0
            damping = torch.where(bare, 1.0, (DAMPING * miss.clamp(max=1)).unsqueeze(1))
            step = _solved(gram, torch.where(bare, 0, missed), damping)
            tried = (tau + lengths * step).clamp(*ends)
            value = self._value(t, tau)
            new = x - torch.einsum("brn,lbr->lbn", self.a, tried)
            values = self._value(new, tried)
            _, left = self.at(x, tried[0], ends)
            slack = 1e-13 * (1 + value.abs())
            whole = (left.abs().amax(1) < GAIN * miss) & (values[0] <= value + slack)
            best = torch.where(whole, 0, values.argmin(0))
            better = whole | (values.amin(0) < value)
            chosen = tried.gather(0, best.reshape(1, -1, 1).expand(1, *tau.shape))[0]
            tau = torch.where((better & running).unsqueeze(1), chosen, tau)
        return tau, turns

    def _mu(self, t: Tensor) -> Tensor:
        return (t / self.weight).clamp(self.lower, self.upper)

    def _value(self, t: Tensor, tau: Tensor) -> Tensor:
        """Return the dual function, which prices minimise."""
        mu = self._mu(t)
        return (mu * (t - self.weight * mu / 2)).sum(-1) + (self.offset * tau).sum(-1)

    def _alone(self, x: Tensor, tau: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
        """Return a step of every price towards the value that would satisfy its row alone, short enough not to pass
        it.
        """
        _, missed = self.at(x, tau, ends)
        return missed / _product(self.a.abs(), 1 / self.weight).clamp(min=1e-300)


def _gram(a: Tensor, spread: Tensor) -> Tensor:
    return (a * spread.unsqueeze(1)) @ a.mT


def _product(a: Tensor, x: Tensor) -> Tensor:
    return (a @ x.unsqueeze(-1)).squeeze(-1)


def _solved(gram: Tensor, b: Tensor, damping: Tensor | None = None) -> Tensor:
    """Return y with (gram + damping) y = b; any solution if rows depend on each other."""
    size = gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
    small = (1e-11 * size).reshape(-1, 1)
    more = torch.maximum(damping, small) if damping is not None else small.expand(b.shape)
    empty = gram.diagonal(dim1=1, dim2=2) == 0
    factor, _ = torch.linalg.cholesky_ex(gram + torch.diag_embed(torch.where(empty, size.unsqueeze(1), more)))
    y = torch.zeros_like(b)
    # refine: solve for the residual that damping has left
    for _ in range(1 if damping is not None else 4):
        left = torch.where(empty, 0, b - _product(gram, y))
        y = y + torch.cholesky_solve(left.unsqueeze(-1), factor).squeeze(-1)
    return y
