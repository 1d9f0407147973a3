"""Trials of structures of any size: no list of all, but laws that only the right answer keeps.

Ragged batches equal a loop over shorter problems; derivatives equal differences and loops; SparseMAP closes its gap.
"""

import math

import sets
import torch
from torch import Tensor

import polymax as pm
from polymax.structures.base import tensors
from tests.campaign import hostile
from tests.campaign.hostile import Draw

LARGE = {
    "chain": lambda d: (d.choice([1, 2, 17, 40, 90]), d.choice([1, 2, 5, 17, 33])),
    "chain-by-step": lambda d: (d.choice([1, 2, 17, 30]), d.choice([2, 5, 17])),
    "segments": lambda d: (d.choice([1, 9, 20]), 3, d.choice([1, 4])),
    "alignment": lambda d: (d.choice([1, 7, 16, 33, 50]), d.choice([1, 5, 17, 40])),
    "subsequence": lambda d: (d.choice([1, 7, 16]), d.choice([1, 5, 17, 40])),
    "span-tree": lambda d: (d.choice([1, 5, 12, 20]),) * 2,
    "span-tree-labelled": lambda d: (*(d.choice([1, 5, 10]),) * 2, d.choice([1, 3])),
    "projective-tree": lambda d: (d.choice([2, 6, 12, 17]),) * 2,
    "projective-tree-many-roots": lambda d: (d.choice([2, 6, 12]),) * 2,
    "spanning-tree": lambda d: (d.choice([2, 6, 12, 20]),) * 2,
    "spanning-tree-many-roots": lambda d: (d.choice([2, 6, 12]),) * 2,
    "assignment": lambda d: (d.choice([1, 5, 12, 20]),) * 2,
    "subset": lambda d: (d.choice([2, 17, 100]),),
    "simplex": lambda d: (d.choice([1, 17, 100]),),
}
SMALL = {name: row for name, row in sets.BY_NAME.items() if row.indicators and name != "hypergraph"}


def _scores(draw: Draw, row: sets.Set, shape, batch, kind, tame=True) -> tuple[Tensor, ...]:
    found = []
    for k, event in enumerate(row.events(shape)):
        lead = () if k > 0 and len(event) == 2 else batch
        x = hostile.numbers(draw, math.prod(lead), math.prod(event), kind, wild=not tame)
        found.append(x.reshape(*lead, *event))
    return tuple(found)


def _operators(row: sets.Set) -> list[pm.Smoothing]:
    ops: list[pm.Smoothing] = [pm.HardMax(row.structure), pm.SparseMap(row.structure)]
    if isinstance(row.structure, pm.Counted):
        ops.append(pm.Marginals(row.structure))
    if isinstance(row.structure, pm.DynamicProgram):
        ops += [pm.LocalMax(row.structure, pm.Gini()), pm.LocalMax(row.structure, pm.Tsallis(1.5))]
    return ops


def _name(op) -> str:
    return f"{type(op).__name__}({getattr(op, 'regularizer', '')})"


def _apart(found: Tensor, expected: Tensor, kind: torch.dtype, size: float = 1.0) -> bool:
    """True if values differ by more than rounding; -inf agrees with itself."""
    room = (1e-7 if kind == torch.float64 else 2e-3) * (1 + size)
    same = (found == expected) | ((found - expected).abs() <= room)
    return not bool(same.all())


def ragged(draw: Draw) -> tuple[int, list[str]]:
    """A batch with lengths is a loop over the shorter problems, whatever the padding holds."""
    row = draw.choice(sets.RAGGED)
    shape = draw.choice([s for s in row.shapes if row.size(s) > 0])
    kind = draw.choice([torch.float64, torch.float32])
    count = draw.choice([1, 3, 6])
    scores = _scores(draw, row, shape, (count,), kind)
    longest = row.size(shape)
    least = max(row.least, 0 if row.able("local") else 1)
    lengths = draw.integers(least, longest + 1, count)
    op = draw.choice(_operators(row))
    draw.note(f"{row.name} {_name(op)} {str(kind)[6:]} {shape} lengths {lengths.tolist()}")
    dirty = _soiled(draw, row, scores, lengths.tolist())
    pair = row.paired
    placed = lengths.to(draw.device)
    together = op.with_lengths((placed, placed) if pair else placed)
    inputs = [x.to(draw.device).requires_grad_() for x in dirty]
    value, mu = together.max(*inputs), tensors(together(*inputs))
    grads = torch.autograd.grad(value.sum(), inputs)
    faults = []
    if not all(bool(torch.isfinite(t).all()) for t in (value, *mu, *grads)):
        return count, ["the padding shows: a result is not finite"]
    for i, n in enumerate(lengths.tolist()):
        alone = [x if x.dim() == len(e) else x[i] for x, e in zip(scores, row.events(shape), strict=True)]
        short = [x.to(draw.device) for x in row.cut(alone, n)]
        size = sum(float(x.abs().sum()) for x in short if x.numel())
        if _apart(value[i].double(), op.max(*short).double(), kind, size):
            faults.append(f"{_name(op)} of instance {i}, length {n}: {float(value[i])} is not {float(op.max(*short))}")
        whole = [m[i] for m in mu]
        inner = row.cut(whole, n)
        if any(
            float(m.double().abs().sum()) > float(c.double().abs().sum()) * (1 + 1e-6) for m, c in zip(whole, inner)
        ):
            faults.append(f"{_name(op)} of instance {i}, length {n}: padding has weight")
        for a, b in zip(inner, tensors(op(*short)), strict=True):
            # where structures tie, rounding may choose another
            if not isinstance(op, pm.HardMax) and a.numel() and _apart(a.double(), b.double(), kind, 1e-3 * size):
                faults.append(f"{_name(op)} of instance {i}, length {n}: argmax is not that of the short problem")
    return count, faults


def _soiled(draw: Draw, row: sets.Set, scores, lengths) -> list[Tensor]:
    """The scores with NaN, infinities or large numbers at padding."""
    dirt = draw.choice([math.nan, math.inf, -math.inf, 1e30, 0.0])
    draw.note(f"padding {dirt}")
    first = torch.full_like(scores[0], dirt)
    for i, n in enumerate(lengths):
        inner = row.cut([first[i], *scores[1:]], n)[0]
        inner.copy_(row.cut([scores[0][i], *scores[1:]], n)[0])
    return [first, *(x.clone() for x in scores[1:])]


def large(draw: Draw) -> tuple[int, list[str]]:
    """Values, gradients and certificates of structures that nobody could list."""
    row = sets.BY_NAME[draw.choice(LARGE)]
    shape = LARGE[row.name](draw)
    kind = draw.choice([torch.float64, torch.float32])
    scores = _scores(draw, row, shape, (2,), kind)
    draw.note(f"{row.name} {str(kind)[6:]} {shape}")
    inputs = tuple(x.to(draw.device).requires_grad_() for x in scores)
    size = sum(float(x.abs().max()) for x in scores if x.numel()) * sum(shape)
    eps = torch.finfo(kind).eps
    best = pm.HardMax(row.structure).max(*inputs)
    y = row.structure.map(*inputs)
    faults = []
    room = 64 * eps * (1 + size)
    if bool(((row.structure.score(y, *inputs) - best).abs() > room).any()):
        faults.append("the best value is not the score of the best structure")
    for _ in range(3):
        noisy = [x.detach() + 0.1 * (1 + x.detach().abs().mean()) * torch.randn_like(x) for x in inputs]
        other = row.structure.score(row.structure.map(*noisy), *inputs)
        if bool((other > best + room).any()):
            faults.append(f"a structure is {float((other - best).max()):.3g} better than the best")
    for op in _operators(row)[2:]:
        value = op.max(*inputs)
        if bool((value < best - room - (2 if isinstance(op, pm.LocalMax) else 0)).any()):
            faults.append(f"{_name(op)} is below the best structure")
        full = row.structure.full(*inputs)
        slopes = torch.autograd.grad(op.max(*full).sum(), full, allow_unused=True)
        for g, mu in zip(slopes, tensors(op(*inputs)), strict=True):
            if g is not None and _apart(g.double(), mu.double(), kind):
                faults.append(f"the gradient of {_name(op)} is not its argmax")
    return 2, faults + _projected(draw, row, inputs, size, eps)


def _projected(draw: Draw, row: sets.Set, inputs, size, eps) -> list[str]:
    """No structure that MAP finds improves on SparseMAP's mean."""
    op = pm.SparseMap(row.structure)
    mu = op(*inputs)
    first = tensors(mu)[0].detach()
    slope = (inputs[0].detach().double() - first.double(), *(x.detach().double() for x in inputs[1:]))
    found = row.structure.score(row.structure.map(*slope), *slope)
    means = [m.detach().double() for m in tensors(mu)]
    there = row.structure.score(means if len(means) > 1 else means[0], *row.structure.full(*slope))
    room = 1e-8 * (1 + there.abs()) + 64 * eps * (1 + size)
    gap = found - there
    return [] if bool((gap <= room).all()) else [f"SparseMap leaves a gap of {float(gap.max()):.3g}"]


def transforms(draw: Draw) -> tuple[int, list[str]]:
    """torch.func agrees with a loop of backward passes and of calls."""
    row = SMALL[draw.choice(SMALL)]
    shape = draw.choice([s for s in row.shapes if 0 not in s])
    scores = [x.to(draw.device) for x in row.scores(shape, seed=draw.random.randrange(10**6))]
    op = draw.choice(_operators(row))
    way = draw.choice(["jacrev", "vmap", "hessian"])
    draw.note(f"{row.name} {_name(op)} {shape} {way}")

    def mean(x):
        return tensors(op(x, *scores[1:]))[0]

    if way == "vmap":
        batch = torch.stack([scores[0], scores[0] + 0.5, -scores[0]])
        try:
            found = torch.func.vmap(mean)(batch)
        except ValueError as refusal:
            # a solver that looks at numbers cannot be mapped, and says so
            told = isinstance(op, pm.SparseMap) and "as a batch" in str(refusal)
            return 1, [] if told else [f"vmap of {_name(op)} is refused: {refusal}"]
        expected = torch.stack([mean(x) for x in batch])
    elif way == "jacrev":
        found = torch.func.jacrev(mean)(scores[0])
        expected = torch.autograd.functional.jacobian(mean, scores[0])
    else:
        found = torch.func.jacrev(torch.func.grad(lambda x: op.max(x, *scores[1:])))(scores[0])
        expected = torch.autograd.functional.hessian(lambda x: op.max(x, *scores[1:]), scores[0])
    if found.shape != expected.shape or _apart(found, expected, torch.float64):
        return 1, [f"{way} of {_name(op)} is off by {float((found - expected).abs().max()):.3g}"]
    return 1, []


def gradients(draw: Draw) -> tuple[int, list[str]]:
    """Derivatives of values and of expectations against central differences, away from kinks."""
    row = SMALL[draw.choice(SMALL)]
    shape = draw.choice([s for s in row.shapes if 0 not in s])
    scores = row.scores(shape, batch=(2,), seed=draw.random.randrange(10**6))
    scores = [x.to(draw.device) for x in scores]
    op = draw.choice(_operators(row)[1:])
    draw.note(f"{row.name} {_name(op)} {shape}")
    x = scores[0].requires_grad_()
    direction, weights = (torch.randn(x.shape, generator=draw.generator, dtype=torch.float64).to(x) for _ in range(2))
    faults, h = [], 1e-6

    def mean(t):
        return (tensors(op(t, *scores[1:]))[0] * weights).sum()

    for law, function in (("max", lambda t: op.max(t, *scores[1:]).sum()), ("argmax", mean)):
        (slope,) = torch.autograd.grad(function(x), x)
        with torch.no_grad():
            ahead, here, behind = (function(x + step * direction) for step in (h, 0, -h))
            near, far = (
                (ahead - behind) / (2 * h),
                (function(x + 2 * h * direction) - function(x - 2 * h * direction)) / (4 * h),
            )
        bend = abs(float(ahead + behind - 2 * here)) / h
        expected, came = float(near), float((slope * direction).sum())
        # a kink within reach shows in differences that do not agree with each other
        if (
            bend < 1e-4
            and abs(float(near - far)) < 1e-5 * (1 + abs(expected))
            and abs(came - expected) > 1e-4 * (1 + abs(expected))
        ):
            faults.append(f"the derivative of {law} is {came!r}, differences say {expected!r}")
    return 2, faults


TRIALS = {"ragged": ragged, "large": large, "transforms": transforms, "gradients": gradients}
