"""The SparseMAP loop over a batch in lock-step, in torch: for any structure with a `map`, on any device."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import Search
from polymax.kernels.active_set.tolerances import DEPENDENT, NOTHING
from polymax.kernels.exact_sums import halves
from polymax.solvers.loops.reference_face import spanned
from polymax.solvers.loops.rule import Rule
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure, tensors


@dataclass(frozen=True)
class _State:
    """Weighted structures of B instances.

    Shapes: m (B, k, d) first tensors, flat; b (B, k) their scores; p (B, k) their weights; gram (B, k, k).
    """

    m: Tensor
    b: Tensor
    p: Tensor
    gram: Tensor

    @property
    def active(self) -> Tensor:
        return self.p > 0

    @property
    def gains(self) -> Tensor:
        """The derivative of the objective in the weight of each structure, (B, k)."""
        return self.b - torch.einsum("bkl,bl->bk", self.gram, self.p)

    @property
    def mu(self) -> Tensor:
        return torch.einsum("bk,bkd->bd", self.p, self.m)


def solve(
    solver: Rule,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search | None,
    start: Solution | None,
    whole: bool,
) -> tuple[Solution, Tensor]:
    """The solution, and a bool tensor `converged` (*batch,); structures come from `map`, and `search` is not used."""
    problem = _Problem(structure, tuple(x.double() for x in scores))
    state = problem.begin() if start is None else problem.resume(start)
    count = problem.count
    iterations = torch.zeros(count, dtype=torch.long, device=state.p.device)
    gap = torch.zeros_like(state.p[:, 0])
    running = problem.feasible.clone()
    exact = solver.step == "exact"
    for _ in range(solver.max_iter):
        if not bool(running.any()):
            break
        mu = state.mu
        m, b = problem.best(mu)
        current = (state.p * state.gains).sum(-1)
        found = b - (m * mu).sum(-1) - current
        gap = torch.where(running, found, gap)
        # a structure with weight cannot improve on the exact weights, except by rounding
        known = torch.where(state.active, (state.m == m.unsqueeze(1)).all(-1), False).any(-1)
        size = 1 + torch.minimum(current.abs(), (current + problem.total).abs())
        running = running & (gap > solver.tol * size) & ~(known & exact)
        before = state.active
        state = _step(solver, state, m, b, running)
        iterations = iterations + running
        if exact:
            # the set of structures is unchanged: the new structure lost its weight at once, and would again
            running = running & (state.active != _pad(before, state.p.shape[1] - before.shape[1])).any(-1)
    solution = problem.solution(state, iterations, gap.clamp(min=0))
    if whole and exact:
        solution = spanned(structure, solution, problem.around)
    top = problem.total.reshape(problem.batch)
    value = torch.where(solution.value == -torch.inf, solution.value, solution.value + top)
    return replace(solution, value=value), ~running.reshape(problem.batch)


class _Problem:
    """Scores of a batch, and MAP around a point."""

    def __init__(self, structure: Structure, scores: tuple[Tensor, ...]) -> None:
        self.structure = structure
        self.scores = scores
        self.dims = structure.event_dims(*scores)[0]
        self.batch = scores[0].shape[: scores[0].dim() - self.dims]
        self.event = scores[0].shape[scores[0].dim() - self.dims :]
        self.count = self.batch.numel()
        self.feasible = (structure.best_score(*scores) > -torch.inf).reshape(self.count)
        # two parts of each score: sums of the high parts are exact, sums of the low parts are small
        self.halves = halves(scores)
        y = structure.map(*scores)
        # the score of the best structure, which is subtracted from those of all structures
        self.top = tuple(structure.score(y, *part).reshape(self.count) for part in self.halves)

    def best(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """The structure (B, d) with the largest <scores - mu, y>, and its score (B,) less the best structure's."""
        y = self.structure.map(self.scores[0] - mu.reshape(self.scores[0].shape), *self.scores[1:])
        score = self._counted(*(self.structure.score(y, *part).reshape(self.count) for part in self.halves))
        return tensors(y)[0].reshape(self.count, self.event.numel()), score

    @property
    def total(self) -> Tensor:
        """The score of the best structure, (B,)."""
        return self.top[0] + self.top[1]

    def _counted(self, high: Tensor, low: Tensor) -> Tensor:
        """Scores (B, ...), given by their two parts, less the score of the best structure."""
        best = [t.reshape(self.count, *[1] * (high.dim() - 1)) for t in self.top]
        return torch.where(high == -torch.inf, high, (high - best[0]) + (low - best[1]))

    def around(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """Return `best` for mu (*batch, *event), in the shapes of the batch."""
        m, b = self.best(mu)
        return m.reshape(mu.shape), b.reshape(self.batch)

    def begin(self) -> _State:
        m, b = self.best(self.scores[0].new_zeros(self.count, self.event.numel()))
        m, b = m.unsqueeze(1), b.unsqueeze(1)
        return _State(m, b, torch.ones_like(b), _gram(m, m))

    def resume(self, start: Solution) -> _State:
        """The state of an earlier solution under these scores; the best structure for instances without a start."""
        shape = (self.count, start.probs.shape[-1], self.event.numel())
        m = start.vertices.reshape(shape).double()
        p = start.probs.reshape(shape[:2]).double()
        own = self.begin()
        lost = (p.sum(-1) <= 0) | ~self.feasible
        y = m.reshape(*self.batch, shape[1], *self.event)
        b = self._counted(*(self.structure.rescore(y, *part).reshape(shape[:2]) for part in self.halves))
        # structures that the new scores forbid are dropped
        p = torch.where(b > -torch.inf, p, 0)
        lost = lost | (p.sum(-1) <= 0)
        state = _State(
            torch.cat([m, own.m], 1), torch.cat([torch.where(p > 0, b, 0), own.b], 1),
            torch.cat([torch.where(lost.unsqueeze(-1), 0, p), lost.unsqueeze(-1).double()], 1), m.new_zeros(0),
        )  # fmt: skip
        state = replace(state, p=state.p / state.p.sum(-1, keepdim=True), gram=_gram(state.m, state.m))
        return _exact_weights(_independent(state), torch.ones_like(lost))

    def solution(self, state: _State, iterations: Tensor, gap: Tensor) -> Solution:
        p = torch.where(self.feasible.unsqueeze(-1), state.p, 0)
        # heaviest first
        order = torch.sort(p, dim=-1, descending=True, stable=True).indices
        width = max(int((p > 0).sum(-1).max()) if p.numel() else 0, 1)
        order = order[:, :width]
        p = p.gather(-1, order)
        m = state.m.gather(1, order.unsqueeze(-1).expand(*order.shape, state.m.shape[-1]))
        m = torch.where((p > 0).unsqueeze(-1), m, 0)
        value = torch.where(state.active, state.p * (state.b + state.gains), 0).sum(-1) / 2
        return Solution(
            m.reshape(*self.batch, width, *self.event),
            p.reshape(*self.batch, width),
            _gram(m, m).reshape(*self.batch, width, width),
            torch.where(self.feasible, value, -torch.inf).reshape(self.batch),
            iterations.reshape(self.batch),
            gap.reshape(self.batch),
        )


def _step(solver: Rule, state: _State, m: Tensor, b: Tensor, running: Tensor) -> _State:
    state, new = _with(state, m, b, running)
    gains = state.gains
    match solver.step:
        case "exact":
            return _exact_weights(_admit(state, new, running), running)
        case "frank_wolfe":
            forward = _one_hot(new, state) - state.p
            return _move(state, forward, state.p.new_ones(()), running)
        case "pairwise":
            worst = torch.where(state.active, gains, torch.inf).argmin(-1)
            direction = _one_hot(new, state) - _one_hot(worst, state)
            return _move(state, direction, state.p.gather(-1, worst.unsqueeze(-1)).squeeze(-1), running)
        case "away":
            return _away_or_towards(state, new, gains, running)
        case "":
            return _move(state, *_own_direction(solver, state, gains, new), running)
    raise TypeError(f"{type(solver).__name__}.step is {solver.step!r}; it must be exact, frank_wolfe, away or pairwise")


def _own_direction(solver: Rule, state: _State, gains: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """The direction of a user's rule, with its shapes checked."""
    along, longest = solver.direction(state.p, gains, new)
    if along.shape != state.p.shape or longest.shape != new.shape:
        raise ValueError(
            f"{type(solver).__name__}.direction must return a change of weights {tuple(state.p.shape)} and a longest"
            f" step {tuple(new.shape)}; got {tuple(along.shape)} and {tuple(longest.shape)}"
        )
    return along, longest


def _away_or_towards(state: _State, new: Tensor, gains: Tensor, running: Tensor) -> _State:
    """Move towards the new structure, or away from the active structure of least gain, whichever gains more."""
    worst = torch.where(state.active, gains, torch.inf).argmin(-1)
    forward, away = _one_hot(new, state) - state.p, state.p - _one_hot(worst, state)
    better = _slope(state, forward) >= _slope(state, away)
    weight = state.p.gather(-1, worst.unsqueeze(-1)).squeeze(-1)
    longest = torch.where(better, 1.0, weight / (1 - weight).clamp(min=NOTHING))
    return _move(state, torch.where(better.unsqueeze(-1), forward, away), longest, running)


def _slope(state: _State, direction: Tensor) -> Tensor:
    """The derivative of the objective along a change of weights."""
    return (direction * state.gains).sum(-1)


def _move(state: _State, direction: Tensor, longest: Any, running: Tensor) -> _State:
    """The best step along a change of weights, of at most `longest`."""
    bend = torch.einsum("bk,bkl,bl->b", direction, state.gram, direction)
    slope = _slope(state, direction)
    length = torch.where(bend > 0, slope / torch.where(bend > 0, bend, 1), torch.inf)
    length = torch.minimum(length.clamp(min=0), torch.as_tensor(longest, dtype=length.dtype, device=length.device))
    p = state.p + torch.where(running, length, 0).unsqueeze(-1) * direction
    p = torch.where(p > NOTHING, p, 0)
    return replace(state, p=p / p.sum(-1, keepdim=True))


def _with(state: _State, m: Tensor, b: Tensor, running: Tensor) -> tuple[_State, Tensor]:
    """The state with the structure m added, in its present place or in a free place; and that place (B,)."""
    same = ((state.m == m.unsqueeze(1)).all(-1)) & state.active
    free = ~state.active
    place = torch.where(same.any(-1), same.long().argmax(-1), free.long().argmax(-1))
    if bool((running & ~same.any(-1) & ~free.any(-1)).any()):
        grown = max(state.p.shape[1], 4)
        state = _State(_pad(state.m, grown), _pad(state.b, grown), _pad(state.p, grown), state.gram)
        state = replace(state, gram=_gram(state.m, state.m))
        place = torch.where(same.any(-1), same.long().argmax(-1), (~state.active).long().argmax(-1))
    write = (_one_hot(place, state) > 0) & running.unsqueeze(-1)
    stack = torch.where(write.unsqueeze(-1), m.unsqueeze(1), state.m)
    row = torch.einsum("bkd,bd->bk", stack, m)
    gram = torch.where(write.unsqueeze(-1), row.unsqueeze(1), state.gram)
    gram = torch.where(write.unsqueeze(1), row.unsqueeze(-1), gram)
    return _State(stack, torch.where(write, b.unsqueeze(-1), state.b), state.p, gram), place


def _admit(state: _State, new: Tensor, running: Tensor) -> _State:
    """Admit the new structure; if it is an affine mix of the others, it replaces one of them."""
    picked = _one_hot(new, state)
    others = state.active & (picked == 0)
    c, distance, size = _nearest_mix(state, others, picked)
    dependent = running & (distance <= DEPENDENT * size)
    # mu stays and the value rises on the way to the first weight of 0
    ratio = torch.where(others & (c > NOTHING), state.p / torch.where(c > NOTHING, c, 1), torch.inf)
    length, first = ratio.min(-1)
    length = torch.where(dependent, length, 0).unsqueeze(-1)
    p = state.p + length * (picked - torch.where(others, c, 0))
    gone = dependent.unsqueeze(-1) & (_one_hot(first, state) > 0)
    p = torch.where(gone, 0, p.clamp(min=0))
    # the new structure is active if its weight is positive: give it the smallest positive number
    fresh = running.unsqueeze(-1) & (picked > 0) & (p == 0)
    return replace(state, p=torch.where(fresh, torch.finfo(p.dtype).tiny, p))


def _exact_weights(state: _State, running: Tensor) -> _State:
    """The best weights of the structures; structures whose weight would become negative are dropped one by one."""
    busy = running.clone()
    while bool(busy.any()):
        active = state.active
        both = _solved(state, active, torch.stack([state.b, torch.ones_like(state.b)], -1))
        x, one = both.unbind(-1)
        share = ((1 - x.sum(-1)) / torch.where(one.sum(-1) == 0, 1, one.sum(-1))).unsqueeze(-1)
        target = torch.where(active, x + share * one, 0)
        wrong = active & (target <= NOTHING)
        fall = state.p - target
        # a structure whose weight rises only to rounding is dropped first
        ratio = torch.where(fall > 0, state.p / torch.where(fall > 0, fall, 1), 0)
        length, first = torch.where(wrong, ratio, torch.inf).min(-1)
        done = ~wrong.any(-1)
        length = torch.where(done, 1.0, length.clamp(max=1.0)).unsqueeze(-1)
        p = torch.where(done.unsqueeze(-1), target, state.p - length * fall)
        p = torch.where(~done.unsqueeze(-1) & (_one_hot(first, state) > 0), 0, p)
        p = torch.where(active, p.clamp(min=0), 0)
        state = replace(state, p=torch.where(busy.unsqueeze(-1), p, state.p))
        busy = busy & ~done
    return replace(state, p=state.p / state.p.sum(-1, keepdim=True))


def _independent(state: _State) -> _State:
    """The state with affinely independent structures; affine mixes of the structures before are dropped."""
    kept = replace(state, p=torch.zeros_like(state.p))
    heavy = state.p.argmax(-1)
    kept = replace(kept, p=_one_hot(heavy, state))
    for k in range(state.p.shape[1]):
        column = torch.full_like(heavy, k)
        picked = _one_hot(column, state)
        _, distance, size = _nearest_mix(kept, kept.active & (picked == 0), picked)
        wanted = (state.p[:, k] > 0) & (distance > DEPENDENT * size) & ~kept.active[:, k]
        kept = replace(kept, p=kept.p + torch.where(wanted.unsqueeze(-1), picked * state.p, 0))
    return replace(kept, p=kept.p / kept.p.sum(-1, keepdim=True))


def _nearest_mix(state: _State, others: Tensor, picked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The affine mix of others nearest to the structure picked, (B, k), its squared distance and its size, (B,)."""
    column = torch.einsum("bkl,bl->bk", state.gram, picked) + 1
    c = _solved(state, others, column.unsqueeze(-1)).squeeze(-1)
    size = (column * picked).sum(-1)
    distance = size - torch.where(others, column * c, 0).sum(-1)
    return c, distance, size


def _solved(state: _State, active: Tensor, right: Tensor) -> Tensor:
    """x on the active structures with (gram + 1) x = right; positive definite if the structures are independent."""
    both = active.unsqueeze(-1) & active.unsqueeze(-2)
    matrix = torch.where(both, state.gram + 1, 0) + torch.diag_embed((~active).double())
    factor, _ = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(torch.where(active.unsqueeze(-1), right, 0), factor)


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bkd,bld->bkl", a, b)


def _one_hot(index: Tensor, state: _State) -> Tensor:
    return torch.nn.functional.one_hot(index, state.p.shape[1]).to(state.p.dtype)


def _pad(t: Tensor, more: int) -> Tensor:
    return torch.cat([t, t.new_zeros(t.shape[0], more, *t.shape[2:])], 1)
