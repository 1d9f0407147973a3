"""Trials of sequence models: CTC, hidden Markov models, conditional random fields and warping, by plain enumeration."""

import itertools
import math

import torch
from torch import Tensor

import polymax as pm
from tests.campaign import hostile
from tests.campaign.hostile import Draw


def _rows(draw: Draw, kind: torch.dtype, *shape: int) -> Tensor:
    """Hostile scores of a size that sums bear, some of them forbidden."""
    x = hostile.numbers(draw, math.prod(shape[:-1]), shape[-1], kind, wild=False)
    if draw.chance(0.3):
        x = x.masked_fill(hostile.forbidden(draw, *x.shape), -torch.inf)
    return x.reshape(shape)


def _differs(found: float, expected: float, size: float, kind: torch.dtype) -> bool:
    room = (1e-9 if kind == torch.float64 else 1e-4) * (1 + size)
    return not (found == expected or abs(found - expected) <= room)


def _size(*tensors: Tensor) -> float:
    return float(sum(t[torch.isfinite(t)].abs().double().sum() for t in tensors))


def ctc(draw: Draw) -> tuple[int, list[str]]:
    """The sum over all labellings of frames that read as the target."""
    kind = draw.choice([torch.float64, torch.float32])
    frames, classes, batch = draw.choice([1, 2, 3, 5]), draw.choice([2, 3]), draw.choice([1, 3])
    longest = draw.choice([0, 1, 2, 3])
    x = _rows(draw, kind, frames, batch, classes)
    blank = draw.random.randrange(classes)
    labels = [k for k in range(classes) if k != blank]
    drawn = [[draw.choice(labels) for _ in range(longest)] for _ in range(batch)]
    targets = torch.tensor(drawn, dtype=torch.long).reshape(batch, longest)
    widths, sizes = draw.integers(1, frames + 1, batch), draw.integers(0, longest + 1, batch)
    draw.note(f"{tuple(x.shape)} blank {blank} targets {targets.tolist()} lengths {widths.tolist()} {sizes.tolist()}")
    scores = x.to(draw.device).requires_grad_()
    loss = pm.ctc_loss(scores, targets.to(draw.device), widths, sizes, blank, reduction="none")
    alive = torch.where(torch.isfinite(loss), loss, 0).sum()
    (slope,) = torch.autograd.grad(alive, scores)
    faults = [] if bool(torch.isfinite(slope).all()) else ["the gradient is not finite"]
    for b in range(batch):
        goal = targets[b, : sizes[b]].tolist()
        totals = [
            sum(float(x[t, b, k]) for t, k in enumerate(path))
            for path in itertools.product(range(classes), repeat=int(widths[b]))
            if [k for k, _ in itertools.groupby(path) if k != blank] == goal
        ]
        expected = -float(torch.logsumexp(torch.tensor(totals, dtype=torch.float64), 0)) if totals else math.inf
        if _differs(float(loss[b]), expected, _size(x[:, b]), kind):
            faults.append(f"the loss of instance {b} is {float(loss[b])!r}, not {expected!r}; x = {x[:, b].tolist()}")
    return batch, faults


def crf(draw: Draw) -> tuple[int, list[str]]:
    """The negative log-likelihood, the best tags and the marginals of each sequence."""
    kind = draw.choice([torch.float64, torch.float32])
    states, sizes = draw.choice([1, 2, 3]), [draw.choice([1, 2, 4]) for _ in range(3)]
    model = pm.nn.CRF(states, batch_first=draw.chance(0.5)).to(kind).to(draw.device)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = hostile.numbers(draw, 1, parameter.numel(), kind, wild=False)
            parameter.copy_(drawn.reshape(parameter.shape))
    x = [_rows(draw, kind, n, states) for n in sizes]
    tags = [draw.integers(0, states, n) for n in sizes]
    draw.note(f"{str(kind)[6:]} {states} states, lengths {sizes}")
    emissions = [t.to(draw.device) for t in x]
    losses = model(emissions, [t.to(draw.device) for t in tags], reduction="none")
    best, means = model.decode(emissions), model.marginals(emissions)
    faults = []
    parameters = [
        p.detach().double().cpu() for p in (model.start_transitions, model.transitions, model.end_transitions)
    ]
    for b, n in enumerate(sizes):
        paths = torch.tensor(list(itertools.product(range(states), repeat=n)))
        totals = _scored(x[b].double(), paths, *parameters)
        total = torch.logsumexp(totals, 0)
        size = _size(x[b], *parameters)
        if total == -torch.inf:
            continue
        gold = _scored(x[b].double(), tags[b][None], *parameters)[0]
        if _differs(float(losses[b]), float(total - gold), size, kind):
            faults.append(f"the loss of sequence {b} is {float(losses[b])!r}, not {float(total - gold)!r}")
        found = _scored(x[b].double(), torch.tensor(best[b])[None], *parameters)[0]
        if _differs(float(found), float(totals.max()), size, kind):
            faults.append(f"the tags of sequence {b} score {float(found)!r}, the best {float(totals.max())!r}")
        p = torch.softmax(totals, 0)
        mean = torch.stack([(p[:, None] * (paths == k)).sum(0) for k in range(states)], -1)
        room = (1e-9 if kind == torch.float64 else 1e-4) * (1 + size)
        if room < 1 and not float((means[b].detach().double().cpu() - mean).abs().max()) <= room:
            faults.append(f"the marginals of sequence {b} are off")
    return len(sizes), faults


def _scored(x: Tensor, paths: Tensor, start: Tensor, transition: Tensor, end: Tensor) -> Tensor:
    """Scores (paths,) of tag sequences (paths, n)."""
    steps = transition[paths[:, :-1], paths[:, 1:]].sum(-1)
    return start[paths[:, 0]] + end[paths[:, -1]] + steps + x.gather(1, paths.T).sum(0)


def warping(draw: Draw) -> tuple[int, list[str]]:
    """Distances of ragged costs, by enumeration of their paths."""
    kind = draw.choice([torch.float64, torch.float32])
    shapes = [(draw.choice([1, 2, 4]), draw.choice([1, 3, 4])) for _ in range(3)]
    whole = draw.chance(0.5)
    structure = pm.Alignment() if whole else pm.Subsequence()
    costs = [-_rows(draw, kind, *shape) for shape in shapes]
    gamma = draw.choice([0.1, 1.0, 10.0])
    draw.note(f"{str(kind)[6:]} {shapes} gamma {gamma}" + ("" if whole else " subsequence"))
    placed = [c.to(draw.device).requires_grad_() for c in costs]
    hard, soft = pm.dtw(placed, subsequence=not whole), pm.soft_dtw(placed, gamma, subsequence=not whole)
    faults = []
    slopes = torch.autograd.grad(torch.where(torch.isfinite(soft), soft, 0).sum(), placed)
    if not all(bool(torch.isfinite(g).all()) for g in slopes):
        faults.append("the gradient is not finite")
    for b, cost in enumerate(costs):
        paths = structure.vertices(cost.shape).double()
        totals = torch.where(paths == 0, 0, cost.double()).sum((1, 2))
        expected = -gamma * float(torch.logsumexp(-totals / gamma, 0))
        for name, found, truth in (("dtw", hard[b], float(totals.min())), ("soft_dtw", soft[b], expected)):
            if _differs(float(found), truth, _size(cost), kind):
                faults.append(f"{name} of {b} is {float(found)!r}, not {truth!r}; cost = {cost.tolist()}")
    return len(costs), faults


TRIALS = {"ctc": ctc, "crf": crf, "warping": warping}
