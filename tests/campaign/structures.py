"""Trials of structures that can be enumerated: every operator against the list of all structures, in float64."""

import math
import warnings
from dataclasses import dataclass
from functools import cache

import sets
import torch
from torch import Tensor

import polymax as pm
from polymax.structures.base import tensors
from tests.campaign import hostile
from tests.campaign.hostile import Draw

ROWS = sets.TABLE
# their second scores, of transitions, may be one matrix for all steps or one for each
STEPS = (pm.Chain, pm.SemiMarkov, pm.BudgetChain, pm.SegmentChain)
SOLVERS = {
    "active-set": pm.ActiveSet(),
    "frank-wolfe": pm.FrankWolfe(),
    "away": pm.AwayStep(),
    "pairwise": pm.Pairwise(),
}
REGULARIZERS = [
    pm.Shannon(),
    pm.Gini(),
    pm.Tsallis(1.5),
    pm.Tsallis(1.25),
    pm.Tsallis(3.0),
    pm.Shannon(0.3),
    pm.Gini(2.0),
    pm.Zero(),
    pm.Norm(2.0),
    pm.Fused(0.3),
]


@dataclass
class Problem:
    """Scores of a batch, all structures and what they score; instances in which a structure meets a NaN, or a NaN is.

    Shapes: totals and sizes (count, B), the sum of scores and of their absolute values
    """

    row: sets.Set
    shape: tuple[int, ...]
    scores: tuple[Tensor, ...]
    batch: tuple[int, ...]
    vertices: tuple[Tensor, ...]
    totals: Tensor
    sizes: Tensor
    nan: Tensor
    murky: Tensor

    @property
    def kind(self):
        return self.scores[0].dtype

    @property
    def eps(self):
        return min(torch.finfo(self.kind).eps, torch.finfo(torch.float32).eps)

    @property
    def best(self):
        return self.totals.amax(0)

    @property
    def size(self):
        """The largest sum of absolute scores that a structure has, (B,)."""
        return 1 + self.sizes.amax(0)

    def flat(self, mu) -> list[Tensor]:
        """The tensors of a result as (B, parts), in float64."""
        count = math.prod(self.batch)
        return [t.detach().double().cpu().reshape(count, t.numel() // max(count, 1)) for t in tensors(mu)]


@cache
def _listed(name, shape):
    row = next(row for row in ROWS if row.name == name)
    return row.vertices(shape)


def problem(draw: Draw, row: sets.Set, wild: bool = True, nan: bool = True) -> Problem:
    """Hostile scores of a batch; most of them have a structure, some none."""
    shape = draw.choice(row.shapes)
    kind = hostile.dtype(draw)
    batch = draw.choice([(), (1,), (4,), (2, 3)])
    count = math.prod(batch)
    draw.note(f"{row.name} {str(kind)[6:]} {(*batch, *shape)}")
    events = row.events(shape)
    large, wild = wild and draw.chance(0.1), wild and draw.chance(0.3)
    draw.note("large ties" if large else "")
    shared = [k > 0 and len(event) == 2 and draw.chance(0.7) for k, event in enumerate(events)]
    scores = []
    for k, (event, one) in enumerate(zip(events, shared, strict=True)):
        lead = 1 if one else count
        x = hostile.numbers(draw, lead, math.prod(event), kind, wild)
        if large:
            x = hostile.large_ties(draw, lead, math.prod(event), kind).clamp(max=torch.finfo(kind).max).to(kind)
        # sums of parts stay finite
        limit = torch.finfo(kind).max / 32
        x = x.clamp(-limit, limit)
        if draw.chance(0.3) and row.indicators:
            x = x.masked_fill(hostile.forbidden(draw, *x.shape), -torch.inf)
        if isinstance(row.structure, STEPS) and len(event) == 2 and k and not one:
            # transitions of each instance are those of each step
            event = (max(shape[0] - 1, 0), *event)
            x = x.unsqueeze(1).expand(-1, event[0], -1).reshape(lead, math.prod(event))
        scores.append(x.reshape(*(() if one else batch), *event))
    broken = torch.zeros(count, dtype=torch.bool)
    vertices = _listed(row.name, shape)
    if nan and count and scores[0].numel() and draw.chance(0.15):
        used = (vertices[0] != 0).any(0).flatten().nonzero()[:, 0]
        if len(used):
            instance = draw.random.randrange(count)
            x = scores[0].reshape(count, -1).clone()
            x[instance, int(draw.choice(used))] = torch.nan
            broken[instance] = True
            scores[0] = x.reshape(scores[0].shape)
            draw.note(f"NaN in instance {instance}")
    placed = tuple(hostile.laid_out(draw, x).to(draw.device) for x in scores)
    whole = tuple(x.to(torch.float64).nan_to_num(nan=0.0, neginf=-torch.inf) for x in scores)
    _, totals = row.enumerated(whole, shape)
    # a NaN shows where a structure that is left uses it
    shown = broken & _reached(row, scores, shape, count)
    plain = tuple(x.nan_to_num(nan=0.0, neginf=0.0).abs() for x in whole)
    _, sizes = row.enumerated(plain, shape)
    many = len(vertices[0])
    totals, sizes = totals.reshape(many, count), sizes.reshape(many, count)
    return Problem(row, shape, placed, batch, vertices, totals, sizes, shown, broken)


def _reached(row, scores, shape, count) -> Tensor:
    """Instances (B,) in which a structure uses a NaN, and no forbidden part."""
    nan = tuple(torch.where(x.isnan(), 1.0, torch.where(x == -torch.inf, x, 0)).double() for x in scores)
    return (row.enumerated(nan, shape)[1].reshape(-1, count) > 0).any(0) if count else torch.zeros(0, dtype=torch.bool)


def _instances(at: Problem, wrong: Tensor, law: str) -> list[str]:
    """A fault for the first instance in which a law is broken."""
    bad = (wrong & ~at.murky).nonzero()[:, 0]
    if not len(bad):
        return []
    i = int(bad[0])
    shown = [x.double().reshape(-1 if x.dim() == 0 else x.shape) for x in at.scores]
    count = math.prod(at.batch)
    picked = [
        (x.reshape(count, x.numel() // count)[i] if x.numel() and x.shape[: len(at.batch)] == at.batch else x)
        for x in shown
    ]
    listed = "; ".join(str(x.tolist()) for x in picked) if sum(x.numel() for x in picked) <= 16 else "larger scores"
    return [f"{law} in {len(bad)} of {count} instances, first {i}: {listed}"]


def _nan_stays(at: Problem, value: Tensor, mu: list[Tensor]) -> list[str]:
    faults = []
    for i in at.nan.nonzero()[:, 0].tolist():
        if not math.isnan(value[i]):
            faults.append(f"a NaN in instance {i} gives the value {float(value[i])}")
        # where there is one structure, nothing has to be known to name it
        if len(at.totals) > 1 and not any(bool(t[i].isnan().any()) for t in mu):
            faults.append(f"a NaN in instance {i} gives an argmax without NaN")
    return faults


def _common(at: Problem, value: Tensor, mu: list[Tensor]) -> list[str]:
    """Laws of every smoothing: finite where a structure is left, -inf and 0 where none is."""
    none = at.best == -torch.inf
    faults = _nan_stays(at, value, mu)
    faults += _instances(at, none & (value != -torch.inf), "no structure is left, but the value is not -inf")
    for t in mu:
        faults += _instances(at, none & (t != 0).any(-1), "no structure is left, but argmax is not 0")
        faults += _instances(at, ~torch.isfinite(t).all(-1), "argmax is not finite")
    fits = at.best.abs() < torch.finfo(at.kind).max / 4
    return faults + _instances(at, ~none & fits & ~torch.isfinite(value), "the value is not finite")


def hard(draw: Draw, row: sets.Set) -> tuple[int, list[str]]:
    """MAP: a structure, and none is better."""
    at = problem(draw, row)
    op = pm.HardMax(row.structure)
    value = op.max(*at.scores).detach().double().cpu().reshape(-1)
    mu = at.flat(op(*at.scores))
    faults = _common(at, value, mu)
    alive = at.best > -torch.inf
    y, listed = torch.cat(mu, -1), torch.cat([v.flatten(1) for v in at.vertices], -1)
    same = (y.unsqueeze(0) == listed.unsqueeze(1)).all(-1)
    faults += _instances(at, alive & ~same.any(0), "argmax is no structure")
    scored = torch.where(same, at.totals, -torch.inf).amax(0)
    room = 16 * at.eps * at.size
    faults += _instances(at, alive & same.any(0) & ~(scored >= at.best - room), "argmax is not the best structure")
    room = room + 8 * torch.finfo(at.kind).eps * at.size
    faults += _instances(at, alive & _far(value, at.best, room, at.kind), "the value is not that of the best structure")
    return max(math.prod(at.batch), 1), faults


def _far(value: Tensor, expected: Tensor, room: Tensor, kind: torch.dtype) -> Tensor:
    overflow = expected.abs() > torch.finfo(kind).max / 4
    return ~((value - expected).abs() <= room) & ~overflow


def marginals(draw: Draw, row: sets.Set) -> tuple[int, list[str]]:
    """The sum over structures, and the mean under Gibbs' distribution."""
    at = problem(draw, row)
    gamma = draw.choice([1.0, 1.0, 0.5, 3.0])
    op = pm.Marginals(row.structure, gamma)
    value = op.max(*at.scores).detach().double().cpu().reshape(-1)
    mu = at.flat(op(*at.scores))
    expected = gamma * torch.logsumexp(at.totals / gamma, 0)
    p = torch.softmax(torch.where(at.best == -torch.inf, 0, at.totals) / gamma, 0)
    p = torch.where(at.best == -torch.inf, 0, p)
    return _smooth(at, value, mu, expected, [p.T @ v.flatten(1) for v in at.vertices], gamma)


def _smooth(at, value, mu, expected, means, gamma, moved=0.0):
    faults = _common(at, value, mu)
    alive = at.best > -torch.inf
    room = 64 * at.eps * (at.size + gamma * math.log(len(at.totals) + 1)) + 8 * torch.finfo(at.kind).eps * at.size
    faults += _instances(at, alive & _far(value, expected, room, at.kind), "the value is wrong")
    # what scores round away is lost to probabilities
    slack = 64 * at.eps * (at.size / gamma + 4) + 4 * torch.finfo(at.kind).eps + moved
    for found, mean in zip(mu, means, strict=True):
        off = (found - mean).abs().amax(-1) if found.shape[-1] else torch.zeros(len(found))
        reach = 1 + mean.abs().amax(-1) if mean.shape[-1] else 1
        faults += _instances(at, alive & ~(off <= slack * reach) & (slack < 1), "the expected structure is wrong")
    return max(math.prod(at.batch), 1), faults


def local(draw: Draw, row: sets.Set) -> tuple[int, list[str]]:
    """Differentiable dynamic programming: the recursion as a plain loop, and its gradient."""
    at = problem(draw, row, wild=False)
    omega = draw.choice(REGULARIZERS)
    draw.note(str(omega))
    op = pm.LocalMax(row.structure, omega)
    value = op.max(*at.scores).detach().double().cpu().reshape(-1)
    mu = at.flat(op(*at.scores))
    if at.sizes.amax() == 0 or 0 in at.shape:
        # nothing to decide: the loop has no first step
        return 1, _common(at, value, mu)
    count = math.prod(at.batch)
    full = [x.detach().double().cpu() for x in row.structure.full(*at.scores)]
    full = [x.reshape(count, *x.shape[len(at.batch) :]) for x in full]
    inputs = tuple(x.nan_to_num(nan=0.0, neginf=-torch.inf) for x in full)
    expected, flat = _looped(row, omega, inputs)
    moved = 0.0
    if isinstance(omega, pm.Tsallis) and omega.alpha > 2:
        # slopes of weights near 0 have no bound: so far rounding moves the loop itself
        for _ in range(4):
            steps = [at.eps * (2 * torch.randint(0, 2, x.shape, generator=draw.generator) - 1) for x in inputs]
            others = _looped(row, omega, tuple(x + step for x, step in zip(inputs, steps, strict=True)))[1]
            moved = max(moved, *(float((a - b).abs().max()) for a, b in zip(flat, others, strict=True) if a.numel()))
    if isinstance(omega, pm.Zero | pm.Norm | pm.Fused):
        # at ties each step may choose among several: the value alone is known
        flat = mu
    elif bool((at.best > -torch.inf).any()) and _tied(draw):
        flat = mu
    return _smooth(at, value, mu, expected, flat, 1.0, 4 * moved)


def _looped(row: sets.Set, omega: pm.Regularizer, inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """The value (B,) of the recursion as a plain loop, and its gradients (B, parts)."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    value = row.recursion(omega.max, *inputs)
    total = torch.where(value > -torch.inf, value, 0).sum()
    slopes = torch.autograd.grad(total, inputs, allow_unused=True)
    means = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, slopes, strict=True)]
    return value.detach().reshape(-1), [g.nan_to_num().reshape(value.numel(), -1) for g in means]


def _tied(draw: Draw) -> bool:
    """Whether scores are of a sort whose ties put a sparse mapping on a kink, where the gradient is any of several."""
    return any(note in ("constant", "grid", "near_ties", "at_the_threshold") for note in draw.notes)


def sparse(draw: Draw, row: sets.Set) -> tuple[int, list[str]]:
    """SparseMAP: a mean of structures whose duality gap is closed."""
    name = draw.choice(SOLVERS)
    at = problem(draw, row)
    gamma = draw.choice([1.0, 1.0, 0.5, 3.0])
    draw.note(f"{name} gamma {gamma}")
    op = pm.SparseMap(row.structure, SOLVERS[name], gamma)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = op.max(*at.scores).detach().double().cpu().reshape(-1)
        mu = at.flat(op(*at.scores))
    faults = _common(at, value, mu)
    late = any("stopped after" in str(w.message) for w in caught)
    if late and name == "active-set":
        faults.append(f"the active set does not converge: {caught[0].message}")
    alive = at.best > -torch.inf
    gap, reached, slope = _gap(at, mu, gamma)
    tolerance = 2 * SOLVERS[name].tol * (1 + slope.abs())
    room = tolerance + 64 * at.eps * at.size / gamma + 4 * torch.finfo(at.kind).eps * at.size / gamma
    if isinstance(row.structure, pm.Ranking):
        # a rank is the difference of a score and a mean of scores: it is known to the digits that these leave
        largest = at.scores[0].detach().double().cpu().reshape(len(at.size), -1).nan_to_num(neginf=0.0).abs().amax(-1)
        room = room + 2 * torch.finfo(at.kind).eps * largest * at.size / gamma**2
    if not late:
        faults += _instances(
            at, alive & ~(gap <= room), f"the gap is up to {float(gap[alive].max()) if alive.any() else 0:.3g}"
        )
    expected = gamma * reached
    faults += _instances(at, alive & _far(value, expected, 2 * gamma * room, at.kind), "the value is not the objective")
    if not late and draw.chance(0.5) and bool(alive.all()) and not bool(at.murky.any()):
        faults += _mixture(at, op, mu, room)
    return max(math.prod(at.batch), 1), faults


def _gap(at: Problem, mu: list[Tensor], gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """How much any structure improves on mu to first order, which bounds what is missing; the objective; its slope."""
    mean = torch.where(mu[0].isfinite(), mu[0], 0)
    count = math.prod(at.batch)
    full = at.row.structure.full(*(x.detach().double().cpu() for x in at.scores))
    there = torch.zeros(count, dtype=torch.float64)
    for x, m in zip(full, mu, strict=True):
        flat = x.reshape(count, -1)
        there = there + torch.where(m == 0, 0, flat * m).sum(-1)
    slopes = at.totals / gamma - at.vertices[0].flatten(1) @ mean.T
    there = there / gamma
    squared = mean.square().sum(-1)
    return (slopes.amax(0) - (there - squared)).nan_to_num(nan=torch.inf), there - squared / 2, there - squared


def _mixture(at: Problem, op, mu: list[Tensor], gap: Tensor) -> list[str]:
    """The distribution is one, over structures, and mu is its mean."""
    found = op.distribution(*at.scores)
    probs = found.probs.detach().double().cpu().reshape(math.prod(at.batch), -1)
    eps = torch.finfo(at.kind).eps
    faults = _instances(at, ~((probs.sum(-1) - 1).abs() <= 1e-9 + 8 * eps) | (probs < 0).any(-1), "no distribution")
    vertices = tensors(found.vertices)[0].detach().double().cpu().reshape(*probs.shape, -1)
    known = (vertices.unsqueeze(2) == at.vertices[0].flatten(1)).all(-1).any(-1)
    faults += _instances(at, ((probs > 0) & ~known).any(-1), "the support holds what is no structure")
    off = (torch.einsum("bk,bkx->bx", probs, vertices) - mu[0]).abs().amax(-1) if mu[0].shape[-1] else probs.sum(-1) - 1
    # a squared distance is at most twice the gap
    tolerance = (2 * gap).sqrt() + 16 * eps * (1 + at.vertices[0].abs().sum(0).flatten().sum() / len(at.totals))
    return faults + _instances(at, ~(off <= tolerance), "mu is not the mean")


def _trials():
    table = {}
    for row in ROWS:
        table[f"hard/{row.name}"] = lambda draw, row=row: hard(draw, row)
        if isinstance(row.structure, pm.Counted):
            table[f"marginals/{row.name}"] = lambda draw, row=row: marginals(draw, row)
        if isinstance(row.structure, pm.DynamicProgram) and row.recursion is not None:
            table[f"local/{row.name}"] = lambda draw, row=row: local(draw, row)
        table[f"sparse/{row.name}"] = lambda draw, row=row: sparse(draw, row)
    return table


def empty(draw: Draw) -> tuple[int, list[str]]:
    """A batch without instances has results without instances."""
    row = draw.choice(ROWS)
    draw.note(row.name)
    scores = [x.to(draw.device) for x in row.scores(draw.choice(row.shapes), batch=draw.choice([(0,), (2, 0)]))]
    ops = [pm.HardMax(row.structure), pm.SparseMap(row.structure, draw.choice(SOLVERS.values()))]
    if isinstance(row.structure, pm.Counted):
        ops.append(pm.Marginals(row.structure))
    faults = []
    for op in ops:
        value, mu = op.max(*scores), tensors(op(*scores))[0]
        if value.numel() or mu.shape != scores[0].shape:
            faults.append(f"{type(op).__name__} of an empty batch is {tuple(value.shape)}, {tuple(mu.shape)}")
    return 1, faults


TRIALS = {**_trials(), "empty/all": empty}
